"""One placeholder an image, and what the engine behind the sidecar expects in its place.

The frontend's contract is the same for every engine: exactly one placeholder token an image. What an
engine's own processor looks for in the prompt differs, and `FORMS` says how.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from sidecar.errors import ConfigError, Reason, Rejection
from sidecar.materialize.metadata import Grids, grids_of
from sidecar.model import GRID_TYPES, ModelSpec, grid_tokens
from sidecar.wire.ids import IdList, encode_run, find_all, list_of, locate
from sidecar.wire.media import ItemView, MediaView
from sidecar.wire.msgpack import Buffer, pack_int
from sidecar.wire.tokenspeed import Modality


class Form(Enum):
    """What stands in the prompt for an image."""

    FULL = "as many placeholders as the image has features, with the model's markers around them"
    NATIVE = "the checkpoint's own placeholder text, which the engine's processor searches for"
    SINGLE = "one placeholder token"


FORMS: Final[Mapping[str, Form]] = {"tokenspeed": Form.FULL, "vllm": Form.NATIVE, "sglang": Form.SINGLE}
"""`engine.kind` -> the form that its input processor expects. TokenSpeed has none: it is served here."""

NATIVE_MODEL_TYPES: Final = frozenset({"kimi_k3"})
"""Model types whose native placeholder is not the placeholder token. No other model's prompt is rewritten."""

PAD_FAMILIES: Final = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "qwen2_5_omni", "qwen3_omni_moe"})
"""M-RoPE families whose full sequence is t·h·w / merge² placeholders, the markers being in the prompt already."""

MAX_EXPANDED_IDS: Final = 1 << 22
"""No prompt may grow past this, whatever its grids claim."""

_K3_MARKERS: Final = ("<|media_begin|>", "<|media_content|>", "<|media_end|>")


class Encoder(Protocol):
    """The model's tokenizer, as far as it is needed."""

    def encode(self, text: str) -> Sequence[int]:
        """The ids of a text, without special tokens around it."""
        ...

    def token_id(self, token: str) -> int | None:
        """The id of a single token of the vocabulary, None if it is not in it."""
        ...


class NativePlaceholder(NamedTuple):
    """The placeholder token that frontends send, and the ids that the engine's processor searches for."""

    pad_id: int
    ids: tuple[int, ...]


def native_placeholder(spec: ModelSpec, kind: str, encoder: Encoder | None) -> NativePlaceholder | None:
    """The rewriting that a model needs for a kind of engine, None for one that needs none.

    The native text is not in the vocabulary and its token boundaries shift with the text around it,
    so it is never searched for, only produced: from `model.image_placeholder_ids`, or by encoding the
    config's `image_placeholder` once. Raises `ConfigError` that names the field that is unusable.
    """
    if FORMS[kind] is not Form.NATIVE or spec.model_type not in NATIVE_MODEL_TYPES:
        return None
    pad_id = spec.config.get("media_placeholder_token_id")
    if type(pad_id) is not int:
        raise ConfigError(
            f"model.path: media_placeholder_token_id of this {spec.model_type} is {pad_id!r}; "
            "it must be an integer for engine.kind = vllm"
        )
    if spec.image_placeholder_ids:
        return NativePlaceholder(pad_id, spec.image_placeholder_ids)
    text = spec.config.get("image_placeholder")
    if not isinstance(text, str) or not text:
        raise ConfigError(
            f"model.path: image_placeholder of this {spec.model_type} is {text!r}; it must be a non-empty text "
            "for engine.kind = vllm, or set model.image_placeholder_ids"
        )
    if encoder is None:
        raise ConfigError(
            f"model.path: the tokenizer that would encode image_placeholder {text!r} cannot be loaded; "
            "set model.image_placeholder_ids, or model.trust_remote_code = true for a tokenizer that is code"
        )
    ids = tuple(encoder.encode(text))
    if not ids:
        raise ConfigError(f"model.path: image_placeholder {text!r} encodes to nothing; set model.image_placeholder_ids")
    return NativePlaceholder(pad_id, ids)


def replace_pads(ids: IdList, images: int, native: NativePlaceholder) -> IdList | None:
    """The prompt with every placeholder replaced by the native sequence; None if there is nothing to replace.

    A prompt without a placeholder is native already. Raises `Rejection(expansion_mismatch)` where the
    placeholders are not as many as the images. Cost follows the placeholders, not the prompt.
    """
    if images == 0:
        return None
    pads = find_all(ids, native.pad_id)
    if not pads:
        return None
    check_count(len(pads), images, "<|media_pad|>")
    sequence = b"".join(map(pack_int, native.ids))
    view = memoryview(ids.buf)
    chunks: list[Buffer] = []
    pos = ids.body
    for _, start, end in pads:
        chunks += (view[pos:start], sequence)
        pos = end
    chunks.append(view[pos : ids.end])
    return list_of(chunks, ids.n + len(pads) * (len(native.ids) - 1))


def check_count(pads: int, images: int, token: str) -> None:
    """`expansion_mismatch`: not one placeholder an image."""
    if pads != images:
        raise Rejection(
            Reason.EXPANSION_MISMATCH,
            f"prompt carries {pads} {token} token(s) but {images} image(s) were supplied; refusing to expand",
        )


def convert_raw(
    ids: IdList, images: int, kind: str, native: NativePlaceholder | None, spec: ModelSpec
) -> IdList | None:
    """The prompt for an engine that processes raw media itself; None if it stays as it is.

    Raises `Rejection(expansion_mismatch)` where placeholders and images are not as many. A prompt
    without a placeholder, or without images, is the engine's own affair.
    """
    if native is not None:
        return replace_pads(ids, images, native)
    if FORMS[kind] is Form.SINGLE and images and spec.image_token_id is not None:
        pads = len(find_all(ids, spec.image_token_id))
        if pads:
            kimi = spec.model_type in GRID_TYPES
            check_count(pads, images, "<|media_pad|>" if kimi else f"image placeholder ({spec.image_token_id})")
    return None


class _Expansion(NamedTuple):
    """What one placeholder becomes: ids before, so many placeholders, ids after."""

    before: Sequence[int]
    pads: int
    after: Sequence[int]


def expand(
    prompt: IdList, media: MediaView, spec: ModelSpec, encoder: Encoder | None
) -> tuple[IdList, MediaView] | None:
    """The prompt and the media after every single placeholder has become its full sequence.

    A span of one placeholder whose grid row makes more is expanded; all later offsets shift. None if
    no span is such a one. Raises `Rejection(expansion_mismatch)` for one that cannot be expanded.
    The offsets must have been checked.
    """
    if not any(start == end for item in media.items for start, end in item.offsets or ()):
        return None
    spans = sorted(
        ((start, end, item, place) for item in media.items for place, (start, end) in enumerate(item.offsets or ())),
        key=lambda span: span[0],
    )
    grids = {item.ordinal: _rows(item, spec) for item in media.items}
    plans: list[_Expansion | None] = []
    for start, end, item, place in spans:
        row = _row_of_span(item, grids[item.ordinal], place)
        if start == end and row is not None and 1 < _tokens(row, spec) <= MAX_EXPANDED_IDS:
            plans.append(_plan(item, row, place, spec, encoder))
        else:
            plans.append(None)
    if not any(plans):
        return None
    runs = locate(prompt, [(start, end) for start, end, _, _ in spans])
    grown = prompt.n + sum(len(plan.before) + plan.pads + len(plan.after) - 1 for plan in plans if plan is not None)
    if grown > MAX_EXPANDED_IDS:
        raise Rejection(
            Reason.TOO_LARGE, f"the expanded prompt would have {grown} ids; the limit is {MAX_EXPANDED_IDS}"
        )
    view = memoryview(prompt.buf)
    chunks: list[Buffer] = []
    offsets: dict[int, list[tuple[int, int]]] = {item.ordinal: list(item.offsets or ()) for item in media.items}
    pos, shift = prompt.body, 0
    for (start, end, item, place), plan, run in zip(spans, plans, runs, strict=True):
        if plan is None:
            offsets[item.ordinal][place] = (start + shift, end + shift)
            continue
        chunks.append(view[pos : run.start])
        chunks.append(b"".join(map(pack_int, plan.before)))
        if run.value is None:
            raise _cannot(item, f"position {start} of the prompt holds no token id")
        chunks.append(encode_run(run.value, plan.pads))
        chunks.append(b"".join(map(pack_int, plan.after)))
        first = start + shift + len(plan.before)
        offsets[item.ordinal][place] = (first, first + plan.pads - 1)
        shift += len(plan.before) + plan.pads + len(plan.after) - 1
        pos = run.end
    chunks.append(view[pos : prompt.end])
    items = [item._replace(offsets=tuple(offsets[item.ordinal])) for item in media.items]
    return list_of(chunks, grown), media._replace(items=items)


def _rows(item: ItemView, spec: ModelSpec) -> Grids:
    if spec.model_type not in GRID_TYPES and spec.mrope_family not in PAD_FAMILIES:
        return ()
    return grids_of(item, spec)


def _row_of_span(item: ItemView, rows: Grids, place: int) -> tuple[int, int, int] | None:
    """The grid row of one span: one of the item's, or a single frame of it where every frame has a span."""
    spans = len(item.offsets or ())
    if len(rows) == spans:
        return rows[place]
    if item.modality is Modality.VIDEO and sum(t for t, _, _ in rows) == spans:
        for t, h, w in rows:
            if place < t:
                return 1, h, w
            place -= t
    return None


def _tokens(row: tuple[int, int, int], spec: ModelSpec) -> int:
    """How many placeholders a grid row makes; what is wrong with the row is for the grid rules to say."""
    merge = spec.spatial_merge_size
    if spec.model_type in GRID_TYPES:
        return grid_tokens(row, merge)
    t, h, w = row
    return t * (h // merge) * (w // merge)


def _plan(
    item: ItemView, row: tuple[int, int, int], place: int, spec: ModelSpec, encoder: Encoder | None
) -> _Expansion:
    if item.modality is not Modality.IMAGE:
        raise _cannot(item, f"a {item.modality.name.lower()} is not expanded here; the frontend must expand it")
    if spec.model_type != "kimi_k3":
        return _Expansion((), _tokens(row, spec), ())
    if encoder is None:
        raise _cannot(item, "the model's tokenizer (tokenizer.json in model.path) is needed to write its size as text")
    markers = [encoder.token_id(token) for token in _K3_MARKERS]
    if None in markers:
        missing = _K3_MARKERS[markers.index(None)]
        raise _cannot(item, f"the model's tokenizer has no {missing}")
    width, height = _upload_size(item, row, place)
    begin, content, end = markers
    before = [begin, *encoder.encode(f"image {width}x{height}"), content]
    return _Expansion([i for i in before if i is not None], _tokens(row, spec), [end] if end is not None else [])


def _upload_size(item: ItemView, row: tuple[int, int, int], place: int) -> tuple[int, int]:
    """(width, height) of the image as it was uploaded, from `image_sizes`.

    Processors disagree about the order of the two. The grid keeps the image's proportions, so it tells
    which one it is; where it cannot, the order is transformers': height, width.
    """
    entry = item.metadata.get("image_sizes")
    if entry is None:
        raise _cannot(item, "image_sizes, the size of the upload, is missing from model_specific_data")
    sizes = entry.array()
    if sizes.ndim == 1:
        sizes = sizes.reshape(1, -1)
    if sizes.dtype.kind not in "iu" or sizes.ndim != 2 or sizes.shape[1] != 2 or place >= len(sizes):
        raise _cannot(item, f"image_sizes has the shape {list(entry.array().shape)}; expected a pair an image")
    first, second = (int(size) for size in sizes[place])
    if first <= 0 or second <= 0:
        raise _cannot(item, f"image_sizes holds {[first, second]}; expected positive sizes")
    _, rows, columns = row
    as_height_width = abs(first * columns - second * rows) / (first * columns + second * rows)
    as_width_height = abs(second * columns - first * rows) / (second * columns + first * rows)
    return (first, second) if as_width_height < as_height_width else (second, first)


def _cannot(item: ItemView, why: str) -> Rejection:
    return Rejection(
        Reason.EXPANSION_MISMATCH,
        f"item {item.ordinal}: its single {item.modality.name.lower()} placeholder cannot be expanded: {why}",
    )
