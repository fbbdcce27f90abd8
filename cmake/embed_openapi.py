"""api/openapi.yaml as a C++ header with the same document in JSON."""
import json
import sys

import yaml

source, target = sys.argv[1:]
with open(source, encoding="utf-8") as file:
    text = json.dumps(yaml.safe_load(file), ensure_ascii=True, separators=(",", ":"))
parts = [text[i : i + 8000] for i in range(0, len(text), 8000)]
with open(target, "w", encoding="utf-8") as file:
    file.write("#pragma once\nnamespace dsec {\ninline constexpr char kOpenApiJson[] =\n")
    file.write("\n".join(json.dumps(part) for part in parts))
    file.write(";\n}  // namespace dsec\n")
