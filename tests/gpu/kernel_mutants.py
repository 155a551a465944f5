"""Changes of kernels that comparisons must notice: the launch, a text of the code, and what is there instead."""

from __future__ import annotations

SAMPLED = "feedback:sampled_topk(ratio=0.1,sample_ratio=0.05)|raw32"
FEW_SAMPLED = "feedback:sampled_topk(k=20,sample_ratio=0.1,upper_bound=5)|raw32"

MUTANTS = {
    "a tile that lacks one element is whole": (
        "feedback:topk(ratio=0.05)|raw32",
        "    if begin + TILE <= n:",
        "    if begin + TILE <= n + 1:",
    ),
    "a tile of numbers that lacks one element is whole": (
        "feedback:fp16",
        "    if begin + TILE <= n:",
        "    if begin + TILE <= n + 1:",
    ),
    "a sample reads beyond its tensor": (
        "feedback:topk(ratio=0.05)|raw32",
        "& (i < whole(row, NUMEL))\n    x = corrected",
        "\n    x = corrected",
    ),
    "the later of ties is kept": (
        "feedback:topk(ratio=0.05)|raw32",
        # The first is left out, and one more is kept: as many, at places that exist.
        "(nth_same < ties))\n    to = nth_more + tl.minimum(nth_same, ties)",
        "(nth_same > 0) & (nth_same <= ties))\n"
        "    to = nth_more + tl.minimum(tl.maximum(nth_same - 1, 0), ties)",
    ),
    "one tie less": (
        "feedback:topk(ratio=0.05)|raw32",
        "ties = k - tl.load(of + TAKEN)",
        "ties = k - 1 - tl.load(of + TAKEN)",
    ),
    "slots in spite of an overflow": (
        "feedback:topk(ratio=0.05)|raw32",
        "overflows = count > ROOM",
        "overflows = count < 0",
    ),
    "the slots of a tile that overflows": (
        "feedback:topk(ratio=0.05)|raw32",
        "if from_slots & (count <= ROOM):",
        "if from_slots:",
    ),
    "the histogram is kept": (
        "feedback:topk(ratio=0.05)|raw32",
        "tl.store(bins, tl.zeros_like(count))",
        "pass",
    ),
    "values with scales are subtracted without them": (
        "feedback:topk(ratio=0.05,values=int8)|raw32",
        "if MODE != PLAIN and TYPE <= BF16:",
        "if MODE != PLAIN:",
    ),
    "momentum of sent elements is kept": (
        "correction:topk(ratio=0.05)|raw32",
        "        if MASKING and MODE >= CORRECTION:\n            tl.store(floats(row, MOMENTUM) + i",
        "        if MASKING and MODE > CORRECTION:\n            tl.store(floats(row, MOMENTUM) + i",
    ),
    "ties of spans are not added up": (
        "feedback:topk(ratio=0.05)|raw32",
        "equal + first_span + i, reach - more",
        "equal + first_span + i, reach * 0",
    ),
    "elements above the last digit count as equal to it": (
        "feedback:topk(ratio=0.05)|raw32",
        "at + 1, mask=exceeds",
        "at, mask=exceeds",
    ),
    "NaN of values with scales stays in memory": (
        "correction:topk(ratio=0.05,values=int8)|raw32",
        "            zero_tile(row, tile, MODE, ALIGNED, TILE)\n",
        "            pass\n",
    ),
    "the smallest kept element is the largest": (
        "feedback:topk(ratio=0.05,values=int8)|raw32",
        "tl.max(tl.where(ok, magnitude(x), 0), axis=0)\n        tl.atomic_max",
        "tl.min(tl.where(ok, magnitude(x), INF), axis=0)\n        tl.atomic_max",
    ),
    "a span begins where the one before does": (
        "feedback:topk(ratio=0.05)|raw32",
        "begin = (span - whole(row, FIRST_SPAN)) * SPAN",
        "begin = tl.maximum(span - whole(row, FIRST_SPAN) - 1, 0) * SPAN",
    ),
    "NaN is below Inf": (
        "feedback:topk(ratio=0.05)|raw32",
        "return (bits_of(x) & MAGNITUDE).to(tl.int32)",
        "return tl.where(x == x, (bits_of(x) & MAGNITUDE).to(tl.int32), 0)",
    ),
    "NaN stays in memory": (
        "feedback:topk(k=1)|raw32",
        'tl.atomic_or(state + NOT_FINITE, 1, sem="relaxed")',
        "pass",
    ),
    "a sample begins at the first element": (
        SAMPLED,
        "start = tl.umulhi(draw(tl.load(row + STREAM), wide * 0), wide).to(tl.int32)",
        "start = stride * 0",
    ),
    "a sampled NaN is the threshold": (
        FEW_SAMPLED,
        "* STATE + PREFIX), INF - 1)",
        "* STATE + PREFIX), INF + 0x7FFFFF)",
    ),
    "slots tell of all thresholds": (SAMPLED, "known = tl.load(of + GUESS)", "known = highest * 0"),
    "slots that overflow tell of thresholds": (
        SAMPLED,
        "if tl.load(counts + first + tile) > ROOM:",
        "if first < 0:",
    ),
    "elements below the guess are not counted": (FEW_SAMPLED, "if chosen != OPEN:", "if WHOLE:"),
    "a threshold that few elements reach": (SAMPLED, "tl.where(i < LAST, 1, 0)", "0"),
    "a threshold that many elements reach": (
        SAMPLED,
        "many = number > whole(sample, MOST)",
        "many = number < 0",
    ),
    "a threshold is lowered to the end": (
        SAMPLED,
        "tl.where(decides, 0, goes_on * is_known)",
        "goes_on",
    ),
    "all thresholds are equal": (SAMPLED, "float_of(threshold) * factor", "float_of(threshold)"),
    "counts of the earlier launch": (
        SAMPLED,
        "tl.store(bins, tl.zeros_like(counted))",
        "pass",
    ),
    "slots hold all that reach a lowered threshold": (FEW_SAMPLED, "0 if WHOLE else k", "k"),
    "as many as ever are kept": (
        SAMPLED.replace(")|", ",values=means)|"),
        "tl.store(of + COUNT, count)",
        "tl.store(of + COUNT, k)",
    ),
    "the payload of a NaN is lost": (
        "feedback:fp16",
        "nan = 0x7E00 | ((m >> 13) & 0x3FF)",
        "nan = m * 0 + 0x7E00",
    ),
    "identity is not exact": (
        "feedback:identity",
        "        decoded = x\n",
        "        decoded = -x\n",
    ),
    "half a step is rounded up": ("feedback:fp16", "(m + 0xFFF + ((m >> 13) & 1)", "(m + 0x1000"),
    "sums in another order": (
        "plain:sign",
        "tl.split(tl.permute(pairs, (1, 0)))",
        "tl.split(tl.reshape(lanes, ((COUNT // 2) >> level, 2)))",
    ),
    "another constant of Philox": (
        "feedback:qsgd(levels=127,bucket=64)",
        "zero + use, zero)",
        "zero + use, zero + 1)",
    ),
    "another lane of a run": (
        "feedback:qsgd(levels=127,bucket=64)",
        "tl.permute(both, (0, 2, 1))",
        "both",
    ),
    "digits in base 4": ("feedback:terngrad", "power = power * 3", "power = power * 4"),
    "the ring is not turned": (
        "feedback:randomk(ratio=0.1)",
        "turn = tl.umulhi(draw(stream, k), n)",
        "turn = n * 0",
    ),
    "a block of a rotation has the signs of the first": (
        "feedback:rotate|uniform(bits=4)",
        "j = block * 32 + tl.arange(0, 32)",
        "j = block * 0 + tl.arange(0, 32)",
    ),
    "widest butterflies first": (
        "feedback:rotate|uniform(bits=4)",
        "for level in tl.static_range(0, LEVELS, 2):",
        "for level in tl.static_range(10, -1, -2):",
    ),
    "widest butterflies of a whole block first": (
        "rotated",
        "for level in tl.static_range(4):",
        "for level in tl.static_range(3, -1, -1):",
    ),
    "the last whole block keeps what the rest covers": (
        "plain:rotate|uniform(bits=4)",
        "count = tl.where(shared, rest, 1 << log2)",
        "count = 1 << log2",
    ),
    "a NaN scale stays in its block": (
        "feedback:rotate|uniform(bits=4)",
        'tl.where(scale == scale, decoded, float("nan"))',
        "decoded",
    ),
    "the product is not weighted": ("added:fp16", "real(row, WEIGHT) * value", "value"),
    "one bit for all elements of a byte": ("added:sign", "(i % 8)) & 1", "(i * 0)) & 1"),
    "gradients of 16 bits are of the other type": (
        "sixteen",
        "float_from_half(half) if GRAD_TYPE == FP16",
        "float_from_half(half) if GRAD_TYPE != FP16",
    ),
    "both means are the first": ("added:onebit", "tl.load(scales + 1)", "tl.load(scales)"),
    "the last block is whole": (
        "added:terngrad",
        "tl.minimum(256, (n - begin + 4) // 5)",
        "tl.minimum(256, n)",
    ),
    "a whole block is one byte short": ("added:terngrad", "begin, 256, ok)", "begin, 255, ok)"),
    "kept values of another rank": (
        "peer:topk(ratio=0.1)|raw32",
        "begins + of_places[:, 0]",
        "begins[:1] + of_places[:, 0]",
    ),
    "all later elements are in a range": (
        "peer:topk(ratio=0.1)|raw32",
        "last = tl.where(end < n, last, number)",
        "last = number",
    ),
    "a range begins an element late": (
        "peer:topk(ratio=0.1)|raw32",
        "mask=within, other=0) < begin)",
        "mask=within, other=0) <= begin)",
    ),
    "each rank begins anew": (
        "peer:int8",
        "total += real(of_rank, WEIGHT) * (_float(payload, bucket, ok)",
        "total = real(of_rank, WEIGHT) * (_float(payload, bucket, ok)",
    ),
    "sums begin with what was there": ("peer:topk(ratio=0.1)", "if not BEGUN:", "if BEGUN:"),
    "lower bits in one word": (
        "peer:topk(ratio=0.1)",
        "tl.where(beyond, rest << up, 0)",
        "tl.where(beyond, rest * 0, 0)",
    ),
    "each block of words begins at the first index": (
        "peer:topk(ratio=0.1)",
        "before += tl.sum(",
        "before += 0 * tl.sum(",
    ),
    "levels without a sign": ("added:int8", "(byte ^ 0x80) - 0x80", "byte"),
    "the other half of a byte": ("added:int4", "i % 2 * 4", "(i + 1) % 2 * 4"),
    "the scale of the next bucket": (
        "added:int8(bucket=64)",
        "_float(payload, bucket, ok)",
        "_float(payload, bucket + STRIDE, ok)",
    ),
    "symbols begin a bucket early": (
        "added:qsgd(levels=127,bucket=64)",
        "(n + BUCKET - 1) // BUCKET, ok",
        "n // BUCKET, ok",
    ),
    "one unit for all buckets": (
        "added:qsgd(levels=7,bucket=64)",
        "norm = _float(payload, 4 * (i // BUCKET), ok)",
        "norm = _float(payload, i * 0, ok)",
    ),
    "levels off by one": ("added:uniform(bits=4)", "2 * symbol - TOP", "2 * symbol + 1 - TOP"),
    "a rest's own elements alone": (
        "added:rotate|uniform(bits=4)",
        "tail = inside & (i >= tl.where(covered < n, begin, n))",
        "tail = inside & (i < 0)",
    ),
    "a rest's shared elements are added": (
        "added:rotate|uniform(bits=4)",
        "ends_here = inside & (i >= covered) if REST else inside",
        "ends_here = inside",
    ),
    "a NaN scale stays in its block, added": (
        "added:rotate|uniform(bits=4)",
        'x = tl.where(neighbour == neighbour, x, float("nan"))',
        "x = x",
    ),
    "partial sums of neighbours are added": (
        "bases",
        "tl.split(tl.permute(pairs, (1, 0)))",
        "tl.split(tl.reshape(lanes, ((COUNT // 2) >> level, 2)))",
    ),
    "most of a vector is projected out once": ("bases", "turns = 3", "turns = 2"),
    "a unit vector is projected out once": ("bases", "turns = 4", "turns = 3"),
    "a unit vector of a large projection": (
        "bases",
        "less = (i + lane < n) & (taken < least)",
        "less = (i + lane < n) & (taken <= least)",
    ),
    "NaN in a basis": ("bases", "zero_nonfinite(x).to(tl.float64)", "x.to(tl.float64)"),
    "NaN is kept": ("matrices", "lane, zero_nonfinite(x), mask=ok", "lane, x, mask=ok"),
    "2^60 is safe": ("matrices", "tl.abs(x) < SAFE", "tl.abs(x) <= SAFE"),
    "M loses the average": ("matrices", "gain if SAME else", "gain if not SAME else"),
    "averages begin anew": ("matrices", "if whole(row, BEGUN) == 0:", "if whole(row, BEGUN) >= 0:"),
    "one vector less": (
        "matrices",
        "range(1, whole(row, VECTORS_OF_MATRIX))",
        "range(1, whole(row, VECTORS_OF_MATRIX) - 1)",
    ),
    "sides change places": (
        "matrices",
        "np.where(left, known, factors",
        "np.where(~left, known, factors",
    ),
}

GUARDED = (
    "a tile that lacks one element is whole",
    "a tile of numbers that lacks one element is whole",
    "a sample reads beyond its tensor",
)
"""Those that read or write beyond a tensor."""

GROUPS = ("bases", "matrices", "rotated", "sixteen")
LAUNCHES = sorted({launch for launch, _, _ in MUTANTS.values()} - {*GROUPS})
"""What the mutants change, next to groups of comparisons."""
