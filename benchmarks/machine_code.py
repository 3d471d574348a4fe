"""MachineCode: what the compiler made of one launch, read from its instructions, and how much of it runs at once.

Nothing is measured: instructions are counted once each, however often they run. Knows no kernel.
"""

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from typing import Any

from triton import knobs

USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(.*);")
TARGET = re.compile(r"0x([0-9a-f]+)\s*$")
WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}  # bytes by suffix
ASYNCHRONOUS = "LDGSTS"  # past registers into shared memory
PRODUCTS = {"HGMMA": "wgmma", "UTCHMMA": "tcgen05", "HMMA": "mma"}


@dataclass(frozen=True, slots=True)
class Processor:
    """What the programs on one multiprocessor share. Source: CUDA's programming guide, by compute capability."""

    warps: int
    programs: int
    shared_memory: int  # bytes, of all programs
    per_program: int  # bytes, of one

    def resident(self, registers: int, warps: int, shared: int) -> int:
        """Programs at once; registers: per thread."""
        by_registers = 65536 // (-(-registers * 32 // 256) * 256) // warps
        by_memory = self.shared_memory // (shared + 1024)  # each has 1 KB beside its own
        return min(self.programs, self.warps // warps, by_registers, by_memory)


PROCESSORS = {
    80: Processor(64, 32, 164 * 1024, 163 * 1024),
    89: Processor(48, 24, 100 * 1024, 99 * 1024),
    90: Processor(64, 32, 228 * 1024, 227 * 1024),
    100: Processor(64, 32, 228 * 1024, 227 * 1024),
}


@dataclass(frozen=True, slots=True)
class MachineCode:
    """One compiled launch. Instructions that move data are counted by bytes per thread; in_loops: only those there."""

    name: str
    arch: int
    warps: int
    registers: int  # per thread
    stack: int  # bytes per thread: registers that were spilled lie there
    shared: int  # bytes
    loads: Counter[int]
    stores: Counter[int]
    loads_in_loops: Counter[int]
    asynchronous: int  # loads into shared memory
    products: frozenset[str]  # that tensor cores make: wgmma, mma, ...; with "tf32" for those of rounded float32
    multiplications: int  # float32, outside the tensor cores, in loops
    spills: int  # loads and stores of spilled registers, in loops

    @classmethod
    def of(cls, kernel: Any) -> "MachineCode":
        """kernel: what Triton compiled."""
        registers, stack = resources(kernel)
        text = _dump("-sass", kernel.asm["cubin"])
        instructions = [(int(at, 16), name, rest) for at, name, rest in INSTRUCTION.findall(text)]
        loops = []
        for at, name, rest in instructions:
            target = TARGET.search(rest) if name.startswith("BRA") else None
            if target is not None and int(target[1], 16) < at:
                loops.append((int(target[1], 16), at))
        loads, stores, looped = Counter[int](), Counter[int](), Counter[int]()
        asynchronous = multiplications = spills = 0
        products = set[str]()
        for at, name, _ in instructions:
            kind, *suffixes = name.split(".")
            width = next((WIDTHS[suffix] for suffix in suffixes if suffix in WIDTHS), 4)
            is_looped = any(low <= at <= high for low, high in loops)
            if kind in ("LDG", ASYNCHRONOUS):
                loads[width] += 1
                looped[width] += is_looped
                asynchronous += kind == ASYNCHRONOUS
            elif kind in ("STG", "REDG"):
                stores[width] += 1
            elif kind in ("LDL", "STL"):
                spills += is_looped
            elif kind in PRODUCTS:
                products.add(PRODUCTS[kind] + (" tf32" if "TF32" in suffixes else ""))
            elif kind == "FFMA":
                multiplications += is_looped
        return cls(
            name=kernel.metadata.name,
            arch=kernel.metadata.target.arch,
            warps=kernel.metadata.num_warps,
            registers=registers,
            stack=stack,
            shared=kernel.metadata.shared,
            loads=loads,
            stores=stores,
            loads_in_loops=+looped,
            asynchronous=asynchronous,
            products=frozenset(products),
            multiplications=multiplications,
            spills=spills,
        )

    @property
    def resident(self) -> int:
        """Programs on one multiprocessor at once; 0: not even one."""
        return PROCESSORS[self.arch].resident(self.registers, self.warps, self.shared)

    @property
    def in_flight(self) -> int:
        """Bytes that a multiprocessor may have asked memory for: what is loaded past registers fits shared memory, what
        is loaded into them is counted once. An upper bound, as nobody waits."""
        if self.asynchronous:
            return self.resident * self.shared
        widest = max(self.loads, default=0)  # others are indices, and what all threads of a program read
        return self.resident * self.warps * 32 * sum(w * n for w, n in self.loads.items() if w >= min(widest, 8))


def resources(kernel: Any) -> tuple[int, int]:
    """Registers of a thread, and the bytes of its stack, where those lie that were spilled. Takes milliseconds."""
    found = USAGE.search(_dump("-res-usage", kernel.asm["cubin"]))
    assert found is not None, kernel.metadata.name
    return int(found[1]), int(found[2])


def _dump(option: str, cubin: bytes) -> str:
    """What cuobjdump, which comes with Triton, prints."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        program = [knobs.nvidia.cuobjdump.path, option, file.name]
        return subprocess.run(program, check=True, capture_output=True, text=True).stdout
