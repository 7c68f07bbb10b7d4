"""What a synthetic recording is made of, and the making of it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.errors import Reason, UsageError
from sidecar.recording import Direction, Record
from sidecar.replay.synth.distributions import Draw, DrawSize, parse_count, parse_size
from sidecar.replay.synth.media import MediaMaker, Model, SynthItem
from sidecar.replay.synth.request import SynthRequest, new_hash, new_rid
from sidecar.wire.framing import Framing
from sidecar.wire.tokenspeed import Modality

KINDS: Final = ("text", "image", "video", "audio", "mixed")
DEFAULT_MIX: Final = {"text": 5.0, "image": 4.0, "video": 1.0, "audio": 1.0, "mixed": 1.0}

_NS: Final = 1_000_000_000
_EPOCH_NS: Final = 1_700_000_000 * _NS
"""Recordings made from a seed are equal to the byte, so their wall clock starts at a fixed time."""


@dataclass(frozen=True)
class Recipe:
    """What to make. Shares are from 0 to 1; sizes are in pixels, frames are temporal patches, an audio
    clip's length is in mel frames. `mix` None takes what the model can, in usual proportions."""

    model: Model
    count: int
    seed: int = 0
    mix: Mapping[str, float] | None = None
    prompt: Draw = field(default_factory=lambda: parse_count("lognormal:200,0.8", "--prompt"))
    items: Draw = field(default_factory=lambda: parse_count("1-3", "--items"))
    image_size: DrawSize = field(default_factory=lambda: parse_size("choice:224x224*3,448x448*2,640x480", "--size"))
    frames: Draw = field(default_factory=lambda: parse_count("2-8", "--frames"))
    audio: Draw = field(default_factory=lambda: parse_count("100-1000", "--audio", 20))
    missing_hashes: float = 0.0
    materialized: float = 0.0
    broken: Sequence[Reason] = ()
    broken_share: float = 1.0
    framing: Framing = Framing.NATIVE
    aux_bytes: int = 256
    rate: float = 100.0


class Builder:
    """Makes requests and items; the random numbers decide what is not given."""

    def __init__(self, recipe: Recipe) -> None:
        self.rng = random.Random(recipe.seed)
        self.maker = MediaMaker(recipe.model)
        self._recipe = recipe
        self._number = 0

    def text(self) -> SynthRequest:
        """A request without media."""
        self._number += 1
        ids = self.maker.text(self.rng, self._recipe.prompt(self.rng))
        return SynthRequest(new_rid(self.rng, self._number), list(ids))

    def media(self, *items: SynthItem) -> SynthRequest:
        """A request with these items, text before each and after the last."""
        request = self.text()
        text, request.ids = request.ids, []
        cut = max(1, len(text) // (len(items) + 1))
        for number, item in enumerate(items):
            request.ids.extend(text[number * cut : (number + 1) * cut])
            request.place(item)
        request.ids.extend(text[len(items) * cut :] or text[:1])
        return request

    def image(self, width: int, height: int) -> SynthItem:
        """An image with a hash. Raises `UsageError` for a model without images."""
        if Modality.IMAGE not in self.maker.modalities:
            raise UsageError(f"no images can be made for {self.maker.model.model_type}")
        return self._hashed(self.maker.image(self.rng, width, height))

    def video(self, width: int, height: int, frames: int) -> SynthItem:
        """A video with a hash."""
        return self._hashed(self.maker.video(self.rng, width, height, frames))

    def request(self, kind: str) -> SynthRequest:
        """A sound request of a kind of the mix."""
        recipe, rng = self._recipe, self.rng
        if kind == "text":
            return self.text()
        able = self.maker.modalities
        items = []
        for _ in range(recipe.items(rng)):
            modality = rng.choice(able) if kind == "mixed" else Modality[kind.upper()]
            items.append(self._item(modality))
        if kind == "mixed" and len({item.modality for item in items}) < 2:
            items.append(self._item(next(m for m in able if m is not items[0].modality)))
        request = self.media(*items)
        if rng.random() < recipe.materialized:
            request.materialize()
        return request

    def _item(self, modality: Modality) -> SynthItem:
        recipe, rng = self._recipe, self.rng
        if modality is Modality.AUDIO:
            item = self._hashed(self.maker.audio(rng, recipe.audio(rng)))
        elif modality is Modality.VIDEO:
            width, height = recipe.image_size(rng)
            item = self.video(width, height, recipe.frames(rng))
        else:
            item = self.image(*recipe.image_size(rng))
        if rng.random() < recipe.missing_hashes:
            item.hash = None
        return item

    def _hashed(self, item: SynthItem) -> SynthItem:
        item.hash = new_hash(self.rng)
        return item


def make_records(recipe: Recipe) -> Iterator[Record]:
    """The messages of a recipe: at least `count`, because some ways to break a request take two.

    The metadata of each says what is to become of it: `expect` forwarded, rejected or dropped, and the
    `reason`. Raises `UsageError` for what cannot be made for this model.
    """
    from sidecar.replay.synth.broken import BREAKERS

    builder = Builder(recipe)
    mix = _possible(recipe, builder.maker)
    clock = 0.0
    for number in range(recipe.count):
        clock += builder.rng.expovariate(recipe.rate)
        reason: Reason | None = None
        if recipe.broken and builder.rng.random() < recipe.broken_share:
            reason = recipe.broken[number % len(recipe.broken)]
            try:
                requests = BREAKERS[reason].make(builder)
            except UsageError as error:
                raise UsageError(
                    f"{reason}: {error} (it takes {BREAKERS[reason].needs or 'a model with images'})"
                ) from None
        else:
            requests = [builder.request(builder.rng.choices(list(mix), list(mix.values()))[0])]
        for place, request in enumerate(requests):
            last = place == len(requests) - 1
            yield Record(
                request.frames(recipe.framing, recipe.aux_bytes),
                Direction.INGRESS,
                recipe.framing,
                _EPOCH_NS + int(clock * _NS),
                int(clock * _NS),
                _expected(reason if last else None),
            )


def _expected(reason: Reason | None) -> dict[str, str]:
    if reason is None:
        return {"expect": "forwarded"}
    return {"expect": "dropped" if reason is Reason.DUPLICATE_RID else "rejected", "reason": str(reason)}


def _possible(recipe: Recipe, maker: MediaMaker) -> dict[str, float]:
    able = {modality.name.lower() for modality in maker.modalities} | {"text"}
    if len(able) > 2:
        able.add("mixed")
    if recipe.mix is None:
        return {kind: weight for kind, weight in DEFAULT_MIX.items() if kind in able}
    lacking = [kind for kind, weight in recipe.mix.items() if weight and kind not in able]
    if lacking:
        raise UsageError(
            f"--mix: {', '.join(lacking)} cannot be made for {recipe.model.model_type}, only {', '.join(sorted(able))}"
        )
    return dict(recipe.mix)
