"""Random numbers of the engines: XORWOW generators (Marsaglia 2003), several streams a lane.

Public are the algorithm (XORWOW on GpSimd, and on the Vector engine since NeuronCore-v4) and the size of the state:
six words a stream, four streams a lane of the Vector engine. Model, where nothing is published:
- the Vector engine before NeuronCore-v4, an LFSR of unknown polynomial, is the same generator;
- element i of a lane comes from stream i mod 4; an instruction advances all streams of its lanes equally often;
- the words of a stream are x, y, z, w, v and the counter d;
- a seed becomes state by NumPy's SeedSequence; before any seed was set, a core has the state of its own number.
So sequences are reproducible, here and elsewhere, but they are not those of the card.
"""

from __future__ import annotations

import numpy as np

__all__ = ["VectorRandom", "Xorwow"]

LANES, WORDS = 128, 6
_STEP = np.uint32(362437)
_ONE, _TWO, _FOUR = np.uint32(1), np.uint32(2), np.uint32(4)


class Xorwow:
    """`streams` generators in each of 128 lanes.

    state: uint32[128, 6 * streams], stream after stream; it may be read and assigned to.
    """

    def __init__(self, streams: int, *entropy: int) -> None:
        self.streams = streams
        self.state = np.empty((LANES, streams * WORDS), np.uint32)
        self._fill(entropy)

    def _fill(self, entropy: tuple[int, ...]) -> None:
        self.state[...] = np.random.SeedSequence(entropy).generate_state(self.state.size).reshape(self.state.shape)

    def seed(self, seed: int) -> None:
        """The same sequences after the same seed (its low 32 bits), on every core."""
        self._fill((seed & 0xFFFFFFFF,))

    def words(self, first: int, lanes: int, count: int) -> np.ndarray:
        """The next 32-bit words: uint32[lanes, count] for the lanes from `first` on."""
        own = self.state[first : first + lanes].reshape(lanes, self.streams, WORDS)
        x, y, z, w, v, d = (own[..., i].copy() for i in range(WORDS))
        steps = -(-count // self.streams)
        result = np.empty((steps, lanes, self.streams), np.uint32)
        for row in result:
            x ^= x >> _TWO
            x ^= x << _ONE
            x ^= v
            x ^= v << _FOUR
            x, y, z, w, v = y, z, w, v, x
            d += _STEP
            np.add(v, d, out=row)
        for i, word in enumerate((x, y, z, w, v, d)):
            own[..., i] = word
        return result.transpose(1, 0, 2).reshape(lanes, -1)[:, :count]


class VectorRandom(Xorwow):
    """The generators of the Vector engine."""

    def __init__(self, core: int) -> None:
        super().__init__(4, 0, core)

    def uniform(self, first: int, lanes: int, count: int) -> np.ndarray:
        """float64[lanes, count], word / 2^32: at least 0, below 1, each of the 2^32 values exact."""
        return self.words(first, lanes, count) * 2.0**-32
