#!/usr/bin/env python3
"""Checks the include rules of the source tree; prints file:line: problem and exits 1 when there is one.

usage: check_includes.py [ROOT]

Folders include only downwards: app > rl > generation > parallel > model, and inside model:
model > layers > ops > core; tests and tools may include all. Headers have #pragma once. Project includes are relative to
the root, a file's own header comes first. A third-party library of THIRD_PARTY is named in one source file, tests aside.
CUDA headers stand in *_cuda.* and in at most two model/core/cuda_*.h.
"""

import re
import sys
from pathlib import Path

LEVELS = {
    "model/core": 0,
    "model/ops": 1,
    "model/layers": 2,
    "model": 3,
    "parallel": 4,
    "generation": 5,
    "rl": 6,
    "app": 7,
    "tools": 8,
    "tests": 9,
}
SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
THIRD_PARTY = {
    "yaml-cpp": re.compile(r"^yaml-cpp/"),
    "sentencepiece": re.compile(r"^sentencepiece"),
    "gloo": re.compile(r"^gloo/"),
    "nccl": re.compile(r"^nccl\.h$"),
    "cublasLt": re.compile(r"^cublasLt\.h$"),
    "cudnn_frontend": re.compile(r"^cudnn_frontend"),
}
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|curand|cub/|thrust/|cooperative_groups|nvtx|mma\.h)")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
FILE_NAME = re.compile(r"^[a-z][a-z0-9_]*\.(h|cpp|cu|cuh)$")
VAGUE_NAME = re.compile(r"(^|_)(utils?|misc|helpers?)(_|$)")
MAX_LINES = 500
MAX_CUDA_CORE_HEADERS = 2


def level_of(path):
    """The level of a file by its folder, the deepest that is listed; None outside of all."""
    folder = Path(path).parent
    while str(folder) != ".":
        if folder.as_posix() in LEVELS:
            return LEVELS[folder.as_posix()]
        folder = folder.parent
    return None


class Checker:
    def __init__(self, root):
        self.root = root
        self.problems = []
        self.users = {library: set() for library in THIRD_PARTY}
        self.cuda_core_headers = set()

    def problem(self, path, line, text):
        self.problems.append(f"{path}:{line}: {text}")

    def check_tree(self):
        top_folders = sorted({folder.split("/")[0] for folder in LEVELS})
        for top in top_folders:
            for file in sorted((self.root / top).rglob("*")):
                if file.is_file():
                    self.check_name(file.relative_to(self.root))
                    if file.suffix in SOURCE_SUFFIXES:
                        self.check_file(file.relative_to(self.root))
        for library, users in self.users.items():
            if len(users) > 1:
                for path, line in sorted(users):
                    self.problem(path, line, f"{library} is named in {len(users)} files; allowed: one .cpp")
        if len(self.cuda_core_headers) > MAX_CUDA_CORE_HEADERS:
            for path in sorted(self.cuda_core_headers):
                self.problem(path, 1, f"more than {MAX_CUDA_CORE_HEADERS} core headers include CUDA's")
        return self.problems

    def check_name(self, path):
        if path.suffix in SOURCE_SUFFIXES and not FILE_NAME.match(path.name):
            self.problem(path, 1, "file names are snake_case")
        if VAGUE_NAME.search(path.stem) and path.suffix in SOURCE_SUFFIXES | {".py", ".sh"}:
            self.problem(path, 1, "a file is named after what it holds, not utils, misc or helpers")
        if path.suffix == ".cu" and not path.stem.endswith("_cuda"):
            self.problem(path, 1, "CUDA sources are named *_cuda.cu")

    def check_file(self, path):
        lines = (self.root / path).read_text(encoding="utf-8").splitlines()
        if len(lines) > MAX_LINES:
            self.problem(path, len(lines), f"more than {MAX_LINES} lines")
        if path.suffix in {".h", ".cuh"}:
            code = [line for line in lines if line.strip() and not line.lstrip().startswith("//")]
            if not code or code[0].strip() != "#pragma once":
                self.problem(path, 1, "the header does not start with #pragma once")
        includes = []
        for number, line in enumerate(lines, start=1):
            match = INCLUDE.match(line)
            if match:
                includes.append((number, match.group(1), match.group(2)))
        self.check_own_header_first(path, includes)
        for number, quoted, angled in includes:
            if quoted is not None:
                self.check_project_include(path, number, quoted)
            else:
                self.check_system_include(path, number, angled)

    def check_own_header_first(self, path, includes):
        own = path.with_suffix(".h")
        if path.suffix not in {".cpp", ".cu"} or not (self.root / own).is_file():
            return
        if not includes or includes[0][1] != own.as_posix():
            self.problem(path, includes[0][0] if includes else 1, f'the first include is not "{own.as_posix()}"')

    def check_project_include(self, path, number, included):
        if not (self.root / included).is_file() or ".." in Path(included).parts:
            self.problem(path, number, f'"{included}" is not a file relative to the root')
            return
        level = level_of(included)
        if level is None:
            self.problem(path, number, f'"{included}" is outside the source folders')
        elif level > level_of(path):
            self.problem(path, number, f'includes go down only, "{included}" is above')

    def check_system_include(self, path, number, included):
        if included.split("/")[0] in {folder.split("/")[0] for folder in LEVELS}:
            self.problem(path, number, f"<{included}> is the project's: write it in quotes")
        for library, pattern in THIRD_PARTY.items():
            if pattern.match(included):
                if path.suffix not in {".cpp", ".cu"}:
                    self.problem(path, number, f"{library} is named in a header; allowed: one .cpp")
                elif path.parts[0] == "tests":
                    continue  # a stand-in for the library has its names
                elif path.as_posix() not in {user for user, _ in self.users[library]}:
                    self.users[library].add((path.as_posix(), number))
        if CUDA_HEADER.match(included) and not path.stem.endswith("_cuda"):
            if path.parent.as_posix() == "model/core" and path.name.startswith("cuda_") and path.suffix == ".h":
                self.cuda_core_headers.add(path.as_posix())
            elif not any(THIRD_PARTY[name].match(included) for name in ("cublasLt", "cudnn_frontend")):
                self.problem(path, number, f"CUDA's <{included}> stands outside *_cuda.*")


def main():
    default_root = Path(__file__).resolve().parent.parent
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else default_root
    problems = Checker(root).check_tree()
    for problem in problems:
        print(problem)
    if problems:
        print(f"{len(problems)} problem(s)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
