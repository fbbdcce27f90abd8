"""Runs inside a sandbox: random changes to a tree, and a description of a tree that two sandboxes can be compared by.

    tree_script.py change SEED COUNT DIRECTORY...
    tree_script.py describe
"""
import hashlib
import json
import os
import random
import shutil
import stat
import subprocess
import sys

# The platform's own, and what stands for the sandbox itself.
LEFT_OUT = {"/proc", "/sys", "/dev", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/etc/machine-id", "/tree_script.py"}
# Made anew for each sandbox: "/" by its upper, /etc for the platform's files.
UNTIMED = {"/", "/etc"}


def content(path, size):
    """A digest of what is not a hole; two files of the same bytes have the same, wherever their holes lie."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        at = 0
        while at < size:
            try:
                data = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(file.fileno(), data, os.SEEK_HOLE)
            data -= data % 4096
            for block in range(data, min(end, size), 4096):
                piece = os.pread(file.fileno(), 4096, block)
                if piece.strip(b"\0"):
                    digest.update(str(block).encode() + b":" + piece.rstrip(b"\0"))
            at = end
    return digest.hexdigest()


def describe():
    entries, inodes = {}, {}
    for directory, names, files in os.walk("/", followlinks=False):
        names[:] = sorted(name for name in names if os.path.join(directory, name) not in LEFT_OUT)
        for path in [directory] + [os.path.join(directory, name) for name in files + [n for n in names if os.path.islink(os.path.join(directory, n))]]:
            if path in LEFT_OUT:
                continue
            info = os.lstat(path)
            entry = [stat.S_IFMT(info.st_mode), oct(info.st_mode & 0o7777), info.st_uid, info.st_gid]
            if path not in UNTIMED:
                entry.append(info.st_mtime_ns)
            if stat.S_ISREG(info.st_mode):
                entry += [info.st_size, content(path, info.st_size)]
                inodes.setdefault((info.st_dev, info.st_ino), []).append(path)
            if stat.S_ISLNK(info.st_mode):
                entry.append(os.readlink(path))
            else:
                entry.append(sorted((name, os.getxattr(path, name).hex()) for name in os.listxattr(path) if name.startswith("user.")))
            entries[path] = entry
    links = sorted(sorted(paths) for paths in inodes.values() if len(paths) > 1)
    json.dump({"entries": entries, "links": links}, sys.stdout)


class Changes:
    def __init__(self, seed, roots):
        self.random = random.Random(seed)
        self.seed = seed  # in every name: one of an earlier run may be a fifo, and opening that waits for ever
        self.roots = roots
        self.made = 0

    def walk(self):
        files, directories = [], []
        for root in self.roots:
            for directory, names, below in os.walk(root):
                directories.append(directory)
                files += [os.path.join(directory, name) for name in below]
        return files, directories

    def new(self, directories):
        self.made += 1
        return os.path.join(self.random.choice(directories), f"new-{self.seed}-{self.made}-" + self.random.choice(["a", "\u00e4", "x" * 100, "with space"]))

    def bytes(self):
        return self.random.randbytes(self.random.choice([0, 1, 100, 4096, 5000, 70_000]))

    def step(self):
        files, directories = self.walk()
        plain = [path for path in files if os.path.isfile(path) and not os.path.islink(path)]
        inner = [path for path in directories if path not in self.roots]
        choices = [self.create, self.create, self.make_directory, self.symlink, self.fifo, self.sparse]
        if plain:
            choices += [self.overwrite, self.append, self.truncate, self.delete, self.rename, self.mode, self.owner, self.attribute, self.link, self.touch]
        if inner:
            choices += [self.replace_directory, self.remove_directory, self.rename_directory, self.directory_mode]
        self.random.choice(choices)(plain, directories, inner)

    def create(self, plain, directories, inner):
        with open(self.new(directories), "wb") as file:
            file.write(self.bytes())

    def overwrite(self, plain, directories, inner):
        with open(self.random.choice(plain), "wb") as file:
            file.write(self.bytes())

    def append(self, plain, directories, inner):
        with open(self.random.choice(plain), "ab") as file:
            file.write(self.bytes())

    def truncate(self, plain, directories, inner):
        os.truncate(self.random.choice(plain), self.random.choice([0, 10, 10_000]))

    def delete(self, plain, directories, inner):
        os.unlink(self.random.choice(plain))

    def rename(self, plain, directories, inner):
        os.rename(self.random.choice(plain), self.new(directories))

    def mode(self, plain, directories, inner):
        os.chmod(self.random.choice(plain), self.random.choice([0o600, 0o755, 0o4755, 0o2711, 0o000]))

    def owner(self, plain, directories, inner):
        os.lchown(self.random.choice(plain), self.random.choice([0, 1000, 65535]), self.random.choice([0, 100]))

    def attribute(self, plain, directories, inner):
        os.setxattr(self.random.choice(plain + directories), "user.note" + self.random.choice("12"), self.random.randbytes(20))

    def link(self, plain, directories, inner):
        os.link(self.random.choice(plain), self.new(directories))

    def touch(self, plain, directories, inner):
        moment = self.random.randrange(1_000_000_000 * 10**9, 1_700_000_000 * 10**9)
        os.utime(self.random.choice(plain), ns=(moment, moment))

    def symlink(self, plain, directories, inner):
        os.symlink(self.random.choice(["../x", "/etc/passwd", "nowhere"]), self.new(directories))

    def fifo(self, plain, directories, inner):
        os.mkfifo(self.new(directories))

    def sparse(self, plain, directories, inner):
        with open(self.new(directories), "wb") as file:
            file.truncate(self.random.choice([10 << 20, 3 << 30]))
            file.seek(self.random.randrange(9 << 20))
            file.write(b"in the middle" * 100)

    def make_directory(self, plain, directories, inner):
        os.mkdir(self.new(directories))

    def directory_mode(self, plain, directories, inner):
        os.chmod(self.random.choice(inner), self.random.choice([0o700, 0o1777, 0o2755]))

    def replace_directory(self, plain, directories, inner):
        path = self.random.choice(inner)
        shutil.rmtree(path)
        os.mkdir(path)
        if self.random.random() < 0.5:
            self.create(plain, [path], inner)

    def remove_directory(self, plain, directories, inner):
        shutil.rmtree(self.random.choice(inner))

    def rename_directory(self, plain, directories, inner):
        path = self.random.choice(inner)
        target = self.new([d for d in directories if not (d + "/").startswith(path + "/")])
        subprocess.run(["mv", path, target], check=True)  # copies where overlayfs cannot rename


if __name__ == "__main__":
    if sys.argv[1] == "describe":
        describe()
    else:
        changes = Changes(int(sys.argv[2]), sys.argv[4:])
        count, refused = int(sys.argv[3]), 0
        for _ in range(count):
            try:
                changes.step()
            except (OSError, subprocess.CalledProcessError) as refusal:  # what the kernel refuses is a change of its own
                refused += 1
                print(refusal, file=sys.stderr)
        sys.exit(refused > count // 3)
