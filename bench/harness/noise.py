"""Content for benchmarks that neither compresses nor repeats."""


class Noise:
    """A file object of `size` pseudo-random bytes from `source`, a random.Random."""

    def __init__(self, size, source):
        self.left, self.source = size, source

    def read(self, size=-1):
        size = self.left if size < 0 else min(size, self.left)
        self.left -= size
        return self.source.randbytes(size)
