"""Random legal kernels as text, each with what NumPy says that it computes.

Values are small integers and halves of them, so that float32 is exact and every order of additions gives the same bits.
"""

from dataclasses import dataclass, field
from random import Random

import numpy as np

ROWS, COLUMNS = 128, 64
SHAPES = ((128, 64), (64, 128), (64, 64), (32, 32))
STARTS = {128: (0,), 64: (0, 64), 32: (0, 32, 64, 96)}
MOST = 2.0**18  # magnitudes beyond it are not added up


@dataclass
class Tile:
    name: str
    space: str
    values: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape


@dataclass
class Writer:
    """Writes one core's program and follows it in NumPy."""

    random: Random
    x: np.ndarray
    core: int = 0
    lines: list[str] = field(default_factory=list)
    outputs: dict[str, np.ndarray] = field(default_factory=dict)
    tiles: list[Tile] = field(default_factory=list)
    count: int = 0

    def line(self, text: str) -> None:
        self.lines.append(text)

    def new(self, shape: tuple[int, int], space: str = "sbuf", name: str = "") -> Tile:
        self.count += 1
        tile = Tile(name or f"t{self.core}_{self.count}", space, np.zeros(shape, np.float32))
        self.line(f"%{tile.name}: float32[{shape[0]},{shape[1]}] @{space}")
        return tile

    def pick(self, space: str | None = None, shape: tuple[int, int] | None = None) -> Tile:
        """A tile with contents; loaded where there is none."""
        found = [t for t in self.tiles if space in (None, t.space) and shape in (None, t.shape)]
        return self.random.choice(found) if found else self.load(shape)

    def target(self, shape: tuple[int, int], space: str = "sbuf") -> Tile:
        """A tile to write wholly: often one that is in use."""
        found = [t for t in self.tiles if t.space == space and t.shape == shape]
        if found and self.random.random() < 0.4:
            return self.random.choice(found)
        tile = self.new(shape, space)
        self.tiles.append(tile)
        return tile

    # --- instructions -----------------------------------------------------------------------------------------

    def load(self, shape: tuple[int, int] | None = None) -> Tile:
        rows, columns = shape or self.random.choice(SHAPES)
        tile = self.target((rows, columns))
        if columns > COLUMNS:  # elements pair in row-major order
            self.line(f"dma_copy dst=%{tile.name} src=%x[0:{rows * columns // COLUMNS}, :]")
            tile.values[:] = self.x.reshape(-1)[: rows * columns].reshape(rows, columns)
            return tile
        row, column = self.random.randint(0, ROWS - rows), self.random.randint(0, COLUMNS - columns)
        self.line(f"dma_copy dst=%{tile.name} src=%x[{row}:{row + rows}, {column}:{column + columns}]")
        tile.values[:] = self.x[row : row + rows, column : column + columns]
        return tile

    def fill(self) -> None:
        tile, value = self.target(self.random.choice(SHAPES)), self.random.randint(-3, 3)
        self.line(f"{self.random.choice(['', 'vector.', 'gpsimd.'])}memset dst=%{tile.name} value={value}.0")
        tile.values[:] = value

    def part(self) -> None:
        """A strided part of a tile is written with a part of another."""
        src, dst = self.pick("sbuf"), self.pick("sbuf")
        columns = self.random.choice([4, 8, 16])
        rows = self.random.choice([n for n in (32, 64, 128) if n <= min(src.shape[0], dst.shape[0])])
        views = []
        for tile in (src, dst):
            start = self.random.choice([s for s in STARTS[rows] if s + rows <= tile.shape[0]])
            step = self.random.choice([1, 2])
            first = self.random.randint(0, tile.shape[1] - step * columns)
            last = first + step * columns
            stride = f":{step}" if step > 1 else ""
            views.append((f"[{start}:{start + rows}, {first}:{last}{stride}]", np.s_[start : start + rows, first:last:step]))
        values = src.values[views[0][1]].copy()
        engine = self.random.choice(["", "vector.", "scalar.", "gpsimd."])
        self.line(f"{engine}tensor_copy dst=%{dst.name}{views[1][0]} src=%{src.name}{views[0][0]}")
        dst.values[views[1][1]] = values

    def elementwise(self) -> None:
        one = self.pick()
        other = self.pick("sbuf", one.shape)
        large = max(np.abs(one.values).max(), np.abs(other.values).max()) > MOST
        op = self.random.choice(["maximum", "minimum"] if large else ["add", "subtract", "maximum", "minimum"])
        dst = self.target(one.shape)
        gpsimd = one.space == "sbuf" and self.random.random() < 0.5
        self.line(f"{'gpsimd.' * gpsimd}tensor_tensor dst=%{dst.name} data1=%{one.name} data2=%{other.name} op={op}")
        dst.values[:] = getattr(np, op)(one.values, other.values)

    def scalar(self) -> None:
        src = self.pick()
        dst, number = self.target(src.shape), self.random.randint(-3, 3)
        if self.random.random() < 0.5:
            column = src.values[:, 0:1].copy()
            self.line(f"tensor_scalar dst=%{dst.name} data=%{src.name} op0=maximum operand0=%{src.name}[:, 0:1] op1=minimum "
                      f"operand1={number}.0")  # fmt: skip
            dst.values[:] = np.minimum(np.maximum(src.values, column), number)
        else:
            self.line(f"activation dst=%{dst.name} op=relu data=%{src.name} scale=-1.0")
            dst.values[:] = np.maximum(-src.values, 0)

    def turn(self) -> None:
        src = self.pick("sbuf")
        dst = self.target(src.shape[::-1], "psum")
        self.line(f"nc_transpose dst=%{dst.name} data=%{src.name}")
        dst.values[:] = src.values.T

    def product(self) -> None:
        """A group of matmuls into a fresh tile: the first overwrites, the others add."""
        dst = self.new((64, 64), "psum")
        for _ in range(self.random.randint(1, 3)):
            one, other = self.load((128, 64)), self.load((128, 64))
            self.line(f"nc_matmul dst=%{dst.name} stationary=%{one.name} moving=%{other.name}")
            dst.values += one.values.T @ other.values
        self.tiles.append(dst)

    def reduce(self) -> None:
        src = self.pick()
        dst = self.pick("sbuf")
        if src.shape[0] != dst.shape[0]:
            return
        column, values = self.random.randrange(dst.shape[1]), src.values.max(axis=1)
        self.line(f"tensor_reduce dst=%{dst.name}[:, {column}:{column + 1}] op=maximum data=%{src.name} axis=1")
        dst.values[:, column] = values

    def store(self) -> None:
        tile = self.pick("sbuf")
        name = f"y{self.core}_{len(self.outputs)}"
        self.line(f"dma_copy dst=%{name} src=%{tile.name}")
        self.outputs[name] = tile.values.copy()

    def loop(self) -> None:
        """Rows of x are summed up, and each trip stores a row of the output."""
        trips, first = self.random.randint(1, 5), self.random.randint(0, 3)
        self.count += 1
        mark, name = f"{self.core}_{self.count}", f"y{self.core}_{len(self.outputs)}"
        total = self.new((1, COLUMNS))
        register = self.random.random() < 0.5
        end = f"%e{mark}" if register else first + trips
        self.line(f"%k{mark}: int32[1] @register")
        if register:
            self.line(f"%e{mark}: int32[1] @register")
            self.line(f"register_move dst=%e{mark} src={first + trips}")
        self.line(f"memset dst=%{total.name} value=1.0")
        self.line(f"dma_copy dst=%{name} src=%x[0:8, :]")
        self.line(f"for %k{mark} in {first} to {end} step 1 {{")
        self.line(f"%r{mark}: float32[1,{COLUMNS}] @sbuf")
        self.line(f"dma_copy dst=%r{mark} src=%x[%k{mark}, :]")
        self.line(f"tensor_tensor dst=%{total.name} data1=%{total.name} data2=%r{mark} op=add")
        self.line(f"dma_copy dst=%{name}[%k{mark}, :] src=%{total.name}")
        self.line("}")
        out, row = self.x[:8].copy(), np.ones(COLUMNS, np.float32)
        for k in range(first, first + trips):
            row = row + self.x[k]
            out[k] = row
        self.outputs[name] = out

    def unrolled(self) -> None:
        """What loops of the author's Python leave: blocks of columns go through a tile each; sometimes the first differs."""
        src = self.pick("sbuf")
        rows, width = src.shape
        dst = self.target(src.shape)
        self.count += 1
        line, step = 100 * (self.core + 1) + self.count, self.random.choice([2, 4, 8])
        first, trips = self.random.choice([0, 0, 3]), self.random.randint(1, 3)
        is_new, differs = self.random.random() < 0.7, self.random.random() < 0.3
        name = f"k{self.core}_{self.count}"
        tile = self.new((rows, step), name=name)
        result = src.values.copy()
        self.line(f"tensor_copy dst=%{dst.name} src=%{src.name}")
        for number, k in enumerate(range(first, first + trips * step, step)):
            tile = self.new((rows, step), name=f"{name}#{number + 1}") if number and is_new else tile
            part, tag = f"[:, {k}:{k + step}]", f"k@{line}={k}"
            self.line(f"tensor_copy dst=%{tile.name} src=%{src.name}{part} in ({tag})")
            block = src.values[:, k : k + step].copy()
            for j in range(step):
                column = f"%{tile.name}[:, {j}:{j + 1}]"
                op = "subtract" if differs and number == 0 else "add"
                self.line(f"tensor_scalar dst={column} data={column} op0={op} operand0={2 * j} in ({tag}, j@{line + 1}={j})")
                block[:, j] += -2 * j if op == "subtract" else 2 * j
            self.line(f"tensor_copy dst=%{dst.name}{part} src=%{tile.name} in ({tag})")
            result[:, k : k + step] = block
        dst.values[:] = result
        assert first + trips * step <= width

    def some(self, count: int, loops: bool) -> None:
        kinds = [self.load, self.fill, self.part, self.part, self.elementwise, self.elementwise, self.scalar, self.turn,
                 self.product, self.reduce, self.store]  # fmt: skip
        for _ in range(count):
            self.random.choice([*kinds, *[self.loop, self.unrolled] * loops])()


def small_integers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, (ROWS, COLUMNS)).astype(np.float32)


def kernel(seed: int, cores: int = 1, loops: bool = False) -> tuple[str, np.ndarray, dict[str, np.ndarray]]:
    """(text of stage trace, x, results by name). Two cores exchange a tile through HBM, behind a barrier."""
    random = Random(seed)
    x = small_integers(seed)
    writers = [Writer(random, x, core) for core in range(cores)]
    for writer in writers:
        writer.some(random.randint(3, 10), loops)
    if cores == 2:
        tiles = [writer.pick("sbuf") for writer in writers]
        for writer, tile in zip(writers, tiles, strict=True):
            writer.line(f"dma_copy dst=%m{writer.core} src=%{tile.name}")
        sent = [tile.values.copy() for tile in tiles]
        for writer in writers:
            for number in range(2):  # a barrier orders the accesses to its tensor
                writer.line(f"core_barrier data=%m{number} cores=[0, 1]")
            got = writer.target(sent[1 - writer.core].shape)
            writer.line(f"dma_copy dst=%{got.name} src=%m{1 - writer.core}")
            got.values[:] = sent[1 - writer.core]
            writer.some(random.randint(2, 6), loops)
    for writer in writers:
        writer.store()
    return _text(writers, [tile.shape for tile in tiles] if cores == 2 else []), x, _outputs(writers)


def _outputs(writers: list[Writer]) -> dict[str, np.ndarray]:
    return {name: values for writer in writers for name, values in writer.outputs.items()}


def _text(writers: list[Writer], shared: list[tuple[int, int]]) -> str:
    lines = ["kernel @random stage=trace target=gen3 {", f"param %x: float32[{ROWS},{COLUMNS}] @shared_hbm"]
    outputs = _outputs(writers)
    sizes = {name: values.shape for name, values in outputs.items()} | {f"m{i}": shape for i, shape in enumerate(shared)}
    lines += [f"shared %{name}: float32[{rows},{columns}] @shared_hbm" for name, (rows, columns) in sizes.items()]
    for writer in writers:
        lines += [f"core {writer.core} {{", *writer.lines, "}"]
    return "\n".join([*lines, f"return {', '.join(f'%{name}' for name in outputs)}", "}", ""])
