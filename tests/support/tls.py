"""Certificates of an authority that is made for one test."""
import pathlib
import subprocess

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def _openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, stdin=subprocess.DEVNULL, capture_output=True)


class Authority:
    """`file` is what clients are to trust; certificate() makes what servers show."""

    def __init__(self, directory, name="authority"):
        self.directory = pathlib.Path(directory)
        self.file = self.directory / f"{name}.pem"
        self.key = self.directory / f"{name}.key"
        self.made = 0
        _openssl("req", "-x509", *KEY, "-keyout", self.key, "-out", self.file, "-days", "10", "-subj", f"/CN=dsec test {name}")

    def certificate(self, names="IP:127.0.0.1,DNS:localhost", days=10):
        """(certificate, key), files; a negative number of days makes one that has expired."""
        self.made += 1
        base = self.directory / f"server{self.made}"
        request, key, out, extensions = (base.with_suffix(suffix) for suffix in (".csr", ".key", ".pem", ".ext"))
        extensions.write_text(f"subjectAltName={names}\n")
        _openssl("req", *KEY, "-keyout", key, "-out", request, "-subj", "/CN=dsec test server")
        _openssl("x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self.key, "-CAcreateserial", "-days", days, "-extfile", extensions, "-out", out)
        return out, key
