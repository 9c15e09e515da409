"""Packs the program, the library and the Python module into a wheel.

make_wheel.py BUILD OUTPUT: writes OUTPUT/trireme-VERSION-py3-none-linux_MACHINE.whl with what was built in BUILD. The
libraries that they need are added by auditwheel."""
import base64
import hashlib
import os
import pathlib
import platform
import re
import subprocess
import sys
import time
import zipfile

here = pathlib.Path(__file__).resolve().parent.parent
build, output = map(pathlib.Path, sys.argv[1:])
version = re.search(r'trireme ([0-9.]+)"', (here / "src/base/version.h").read_text()).group(1)
info = f"trireme-{version}.dist-info"
tag = f"py3-none-linux_{platform.machine()}"
# The same files give the same wheel.
when = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315532800))[:6]
records = []


def stripped(path):
    out = output / path.name
    subprocess.run(["strip", "-o", out, path], check=True)
    data = out.read_bytes()
    out.unlink()
    return data


def add(wheel, name, data, mode=0o644):
    entry = zipfile.ZipInfo(name, when)
    entry.external_attr = (0o100000 | mode) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(entry, data)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    records.append(f"{name},sha256={digest},{len(data)}")


output.mkdir(parents=True, exist_ok=True)
with zipfile.ZipFile(output / f"trireme-{version}-{tag}.whl", "w") as wheel:
    for source in sorted((here / "python/trireme").glob("*.py")):
        add(wheel, f"trireme/{source.name}", source.read_bytes())
    add(wheel, "trireme/bin/trireme", stripped(build / "trireme"), 0o755)
    for module in sorted(build.glob("trireme_mpi_*.so")):
        add(wheel, f"trireme/bin/{module.name}", stripped(module), 0o755)
    add(wheel, "trireme/lib/libtrireme.so.0", stripped(build / "libtrireme.so.0"), 0o755)
    add(wheel, f"{info}/METADATA", f"""Metadata-Version: 2.1
Name: trireme
Version: {version}
Summary: GPT training with composed tensor, pipeline and data parallelism
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: numpy
Description-Content-Type: text/markdown

{(here / "docs/python.md").read_text()}""".encode())
    add(wheel, f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: trireme\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
    add(wheel, f"{info}/entry_points.txt", b"[console_scripts]\ntrireme = trireme.__main__:main\n")
    add(wheel, f"{info}/LICENSE", (here / "LICENSE").read_bytes())
    wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD", when), "\n".join(records + [f"{info}/RECORD,,", ""]))
