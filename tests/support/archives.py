"""Tar archives of a few odd entries, in memory."""
import io
import tarfile

from support import images


def tree(*build):
    """Tar bytes from functions that add to an archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for add in build:
            add(archive)
    return out.getvalue()


def file(name, data=b"x\n", **options):
    return lambda archive: images.add_file(archive, name, data, **options)


def special(name, kind, target="", mode=0o777, device=(0, 0), pax=None):
    def add(archive):
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.mode = kind, target, mode
        info.devmajor, info.devminor = device
        info.pax_headers = pax or {}
        archive.addfile(info)
    return add
