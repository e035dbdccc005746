#!/usr/bin/env python3
"""Checks the include rules of the source tree; prints file:line: problem and exits 1 when there is one.

usage: check_includes.py [ROOT]

Folders include only downwards, in the order of LEVELS below; tests and tools may include all. No two headers include each other,
directly or around a circle. Headers have #pragma once. Project includes are relative to the root, a file's own header
comes first. A .cpp has the header of its name, or its name starts with that of the header whose part it implements.
A third-party library of THIRD_PARTY is named in one source file, tests aside. CUDA headers are included only in files
of a folder cuda/, in *_cuda.* and in at most two model/core/cuda_*.h. A folder has at most MAX_FILES files.
"""

import re
import sys
from pathlib import Path

ORDER = """
model/core
model/ops/cpu model/ops/cuda model/ops
model/layers
model/files
model/tokenizer
model
parallel/comm
parallel/layout
parallel/store
parallel/refit parallel/checkpoint
generation
rl/objective
rl/data
rl/state
rl/config
rl/models
rl/loop
rl/run
app/text
app/config
app/launch
app/output
app/commands
app
tools
tests
"""
# A line's folders are of one level: those of one line may include each other only where FRIENDS says so.
LEVELS = {folder: level for level, line in enumerate(ORDER.split("\n")) for folder in line.split()}
# An operator's contract and its two sides: dispatch includes the sides' entry points, which include the contracts.
FRIENDS = ({"model/ops", "model/ops/cpu"}, {"model/ops", "model/ops/cuda"})
SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
THIRD_PARTY = {
    "yaml-cpp": re.compile(r"^yaml-cpp/"),
    "sentencepiece": re.compile(r"^sentencepiece"),
    "gloo": re.compile(r"^gloo/"),
    "nccl": re.compile(r"^nccl\.h$"),
    "cublasLt": re.compile(r"^cublasLt\.h$"),
    "xxhash": re.compile(r"^xxhash\.h$"),
    "cudnn_frontend": re.compile(r"^cudnn_frontend"),
}
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|curand|cub/|thrust/|cooperative_groups|nvtx|mma\.h)")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
FILE_NAME = re.compile(r"^[a-z][a-z0-9_]*\.(h|cpp|cu|cuh)$")
VAGUE_NAME = re.compile(r"(^|_)(utils?|misc|helpers?)(_|$)")
MAX_LINES = 500
MAX_CUDA_CORE_HEADERS = 2
MAX_FILES = 45
# Sources whose functions no other source calls.
WITHOUT_HEADER = {"main.cpp", "cpu_check.cpp"}


def room_of(path):
    """The deepest folder of ORDER that holds the file; None outside of all."""
    folder = Path(path).parent
    while str(folder) != ".":
        if folder.as_posix() in LEVELS:
            return folder.as_posix()
        folder = folder.parent
    return None


def is_cuda_file(path):
    return path.stem.endswith("_cuda") or path.parent.name == "cuda"


def may_include(room, included):
    if room == included or LEVELS[included] < LEVELS[room]:
        return True
    return LEVELS[included] == LEVELS[room] and {room, included} in FRIENDS


class Checker:
    def __init__(self, root):
        self.root = root
        self.problems = []
        self.users = {library: set() for library in THIRD_PARTY}
        self.cuda_core_headers = set()
        self.included = {}  # file -> the project's files that it includes

    def problem(self, path, line, text):
        self.problems.append(f"{path}:{line}: {text}")

    def check_tree(self):
        top_folders = sorted({folder.split("/")[0] for folder in LEVELS})
        for top in top_folders:
            for file in sorted((self.root / top).rglob("*")):
                if file.is_file():
                    self.check_name(file.relative_to(self.root))
                    if file.suffix not in SOURCE_SUFFIXES:
                        continue
                    if room_of(file.relative_to(self.root)) is None:
                        self.problem(file.relative_to(self.root), 1, "is in none of the folders for sources")
                    else:
                        self.check_file(file.relative_to(self.root))
        self.check_folder_sizes()
        self.check_circles()
        for library, users in self.users.items():
            if len(users) > 1:
                for path, line in sorted(users):
                    self.problem(path, line, f"{library} is named in {len(users)} files; allowed: one .cpp")
        if len(self.cuda_core_headers) > MAX_CUDA_CORE_HEADERS:
            for path in sorted(self.cuda_core_headers):
                self.problem(path, 1, f"more than {MAX_CUDA_CORE_HEADERS} core headers include CUDA's")
        return self.problems

    def check_folder_sizes(self):
        for room in LEVELS:
            folder = self.root / room
            if room.split("/")[0] in {"tests", "tools"} or not folder.is_dir():
                continue
            count = sum(1 for file in folder.iterdir() if file.is_file())
            if count > MAX_FILES:
                self.problem(room, 1, f"{count} files beside its sub-folders; allowed: {MAX_FILES}")

    def check_circles(self):
        done = set()

        def visit(file, trail):
            if file in trail:
                circle = trail[trail.index(file):] + [file]
                self.problem(file, 1, "includes itself: " + " > ".join(circle))
            elif file not in done:
                for included in self.included.get(file, []):
                    visit(included, trail + [file])
                done.add(file)

        for file in sorted(self.included):
            visit(file, [])

    def check_header_of(self, path):
        """A source has the header of its name or a header of its folder starts its name."""
        if path.suffix not in {".cpp", ".cu"} or path.parts[0] in {"tests", "tools"} or path.name in WITHOUT_HEADER:
            return
        stems = {header.stem for header in (self.root / path).parent.iterdir() if header.suffix in {".h", ".cuh"}}
        parent = (self.root / path).parent
        if path.parent.name in {"cpu", "cuda"}:
            stems |= {header.stem for header in parent.parent.glob("*.h")}
        if not any(path.stem == stem or path.stem.startswith(stem + "_") for stem in stems):
            self.problem(path, 1, "has no header of its name, nor one whose name starts its own")

    def check_name(self, path):
        if path.suffix in SOURCE_SUFFIXES and not FILE_NAME.match(path.name):
            self.problem(path, 1, "file names are snake_case")
        if VAGUE_NAME.search(path.stem) and path.suffix in SOURCE_SUFFIXES | {".py", ".sh"}:
            self.problem(path, 1, "a file is named after what it holds, not utils, misc or helpers")
        if path.suffix == ".cu" and not is_cuda_file(path):
            self.problem(path, 1, "CUDA sources are named *_cuda.cu or are in a folder cuda/")
        self.check_header_of(path)

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
        room = room_of(included)
        if room is None:
            self.problem(path, number, f'"{included}" is outside the source folders')
        elif not may_include(room_of(path), room):
            where = "above" if LEVELS[room] > LEVELS[room_of(path)] else "beside it"
            self.problem(path, number, f'includes go down only, "{included}" is {where}')
        else:
            self.included.setdefault(path.as_posix(), []).append(included)

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
        if CUDA_HEADER.match(included) and not is_cuda_file(path):
            if path.parent.as_posix() == "model/core" and path.name.startswith("cuda_") and path.suffix == ".h":
                self.cuda_core_headers.add(path.as_posix())
            elif not any(THIRD_PARTY[name].match(included) for name in ("cublasLt", "cudnn_frontend")):
                self.problem(path, number, f"CUDA's <{included}> is included outside *_cuda.* and cuda/")


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
