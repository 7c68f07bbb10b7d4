"""Random prompts of every model type: ids, grids, and the offsets at which the media were put."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from sidecar.materialize.mrope import MODEL_TYPES, Media, MediaItem
from sidecar.wire.tokenspeed import Modality

START, END, IMAGE, VIDEO, AUDIO, AUDIO_START, AUDIO_END, VIDEO_START, VIDEO_END = range(100, 109)
SLICE, SLICE_END, NEWLINE = range(109, 112)

FRAME_FAMILIES = ("qwen3_vl", "qwen3_5", "glm4v")
IMAGE_ONLY = ("glm_image", "hunyuan_vl")


@dataclass
class Prompt:
    """A prompt under construction. A span is (modality, start, end, row or size or length)."""

    model_type: str
    config: dict[str, Any]
    ids: list[int] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    media: dict[Modality, list[tuple[list[tuple[int, int]], Any]]] = field(default_factory=dict)
    seconds: list[float] | None = None
    seconds_dtype: str | None = None
    use_audio_in_video: bool = False
    blocks: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def family(self) -> str:
        return MODEL_TYPES[self.model_type]

    def text(self, *ids: int) -> None:
        self.ids.extend(ids)
        self.types.extend([0] * len(ids))

    def words(self, rng: Random, least: int = 0, most: int = 9) -> None:
        self.text(*(rng.randrange(1000, 9000) for _ in range(rng.randint(least, most))))

    def span(self, modality: Modality, token: int, count: int) -> tuple[int, int]:
        start = len(self.ids)
        self.ids.extend([token] * count)
        self.types.extend([modality.value] * count)
        return start, len(self.ids) - 1

    def add(self, modality: Modality, spans: list[tuple[int, int]], what: Any) -> None:
        self.media.setdefault(modality, []).append((spans, what))

    def stated(self, modality: Modality) -> list[Any]:
        """Rows (sizes, lengths) in prompt order."""
        return [what for _, what in self.media.get(modality, ())]

    def media_only(self) -> Media:
        """What is known without offsets."""
        sized = self.family == "minicpmv4_7"
        image, video = self.stated(Modality.IMAGE), self.stated(Modality.VIDEO)
        return Media(
            () if sized else image,
            () if sized else video,
            self.seconds,
            self.seconds_dtype,
            self.stated(Modality.AUDIO) or None,
            self.use_audio_in_video,
            [size for picture in image for size in picture] if sized else None,
            [size for picture in video for size in picture] if sized else None,
        )

    def items(self, rng: Random) -> list[MediaItem]:
        """The media as a request states them: cut into items at random, in random order."""
        drafts = []
        for modality, entries in self.media.items():
            seconds = self.seconds if modality is Modality.VIDEO else None
            order = list(range(len(entries)))
            rng.shuffle(order)
            while order:
                count = rng.randint(1, len(order))
                chosen, order = order[:count], order[count:]
                pace = tuple(seconds[k] for k in chosen) if seconds else None
                drafts.append((modality, [entries[k] for k in chosen], pace))
        rng.shuffle(drafts)
        return [self._item(index, *draft) for index, draft in enumerate(drafts)]

    def _item(self, index: int, modality: Modality, entries: list[Any], pace: Any) -> MediaItem:
        item = MediaItem(index, modality, tuple(span for spans, _ in entries for span in spans), seconds=pace)
        if pace is not None:
            item = item._replace(seconds_dtype=self.seconds_dtype)
        stated = [what for _, what in entries]
        if modality is Modality.AUDIO:
            return item._replace(audio_lengths=tuple(stated))
        if self.family == "minicpmv4_7":
            return item._replace(target_sizes=tuple(tuple(s) for picture in stated for s in picture))
        interleaved = self.use_audio_in_video and modality is Modality.VIDEO
        return item._replace(grids=tuple(tuple(row) for row in stated), use_audio_in_video=interleaved)


def config_of(model_type: str, rng: Random) -> dict[str, Any]:
    merge = rng.choice([1, 2, 2, 2, 4])
    config: dict[str, Any] = {
        "model_type": model_type,
        "vision_config": {"spatial_merge_size": merge},
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_start_token_id": START,
        "vision_end_token_id": END,
        "image_start_token_id": START,
        "image_end_token_id": END,
        "video_start_token_id": VIDEO_START,
        "video_end_token_id": VIDEO_END,
    }
    if model_type == "qwen2_5_vl":
        config["vision_config"]["tokens_per_second"] = rng.choice([2, 4, 25])
    elif model_type == "ernie4_5_vl_moe":
        config["vision_config"]["temporal_merge_size"] = 2
    elif model_type == "hunyuan_vl":
        sections = rng.choice([[24, 20, 20], [16, 16, 16, 16]])
        config["text_config"] = {"rope_parameters": {"mrope_section": sections}}
    elif model_type == "minicpmv4_7":
        config |= {
            "image_start_id": START,
            "image_end_id": END,
            "slice_start_id": SLICE,
            "slice_end_id": SLICE_END,
            "newline_id": NEWLINE,
            "downsample_mode": rng.choice(["16x", "4x"]),
        }
    elif "omni_moe" in model_type or model_type == "qwen2_5_omni":
        config |= {
            "audio_token_id": AUDIO,
            "audio_start_token_id": AUDIO_START,
            "audio_end_token_id": AUDIO_END,
            "position_id_per_seconds": rng.choice([13, 25]),
            "seconds_per_chunk": 2,
            "audio_config": {"n_window": rng.choice([50, 100])},
        }
        config = {"model_type": model_type, "thinker_config": config}
    return config


def sizes(rng: Random, merge: int, frames: int = 1) -> tuple[int, int, int]:
    return frames, rng.randint(1, 6) * merge, rng.randint(1, 6) * merge


def audio_tokens(prompt: Prompt, length: int) -> int:
    """The encoders' own formulas, in torch's floor arithmetic."""
    if prompt.family == "qwen2_5_omni":
        return ((length - 1) // 2 + 1 - 2) // 2 + 1
    chunk = prompt.config["thinker_config"]["audio_config"]["n_window"] * 2
    left = length % chunk
    return (((left - 1) // 2 + 1 - 1) // 2 + 1 - 1) // 2 + 1 + length // chunk * 13


def put_grid(prompt: Prompt, rng: Random, video: bool) -> None:
    """One image or video with the markers of its family."""
    family = prompt.family
    inner = prompt.config.get("thinker_config", prompt.config)
    merge = 1 if family == "glm_image" else inner["vision_config"]["spatial_merge_size"]
    modality = Modality.VIDEO if video else Modality.IMAGE
    t = rng.randint(1, 5) if video else 1
    if family == "ernie4_5_vl_moe" and video:
        t *= 2
    _, h, w = row = sizes(rng, merge, t)
    height, width = h // merge, w // merge
    if family in ("hunyuan_vl", "hy_v4_vl"):
        width += 1
    token = VIDEO if video and family != "glm4v" else IMAGE
    if not video and family == "hunyuan_vl" and rng.random() < 0.5:
        prompt.text(START)
        spans = [prompt.span(modality, token, height * width + 2)]
        prompt.text(END)
    elif video and family in FRAME_FAMILIES:
        spans = []
        if family == "glm4v":
            prompt.text(VIDEO_START)
        for _ in range(t):
            prompt.words(rng, 0, 4)
            prompt.text(START)
            spans.append(prompt.span(modality, token, height * width))
            prompt.text(END)
        if family == "glm4v":
            prompt.text(VIDEO_END)
    else:
        frames = t // 2 if family == "ernie4_5_vl_moe" and video else t
        prompt.text(START)
        spans = [prompt.span(modality, token, frames * height * width)]
        prompt.text(END)
    prompt.add(modality, spans, row)


def put_audio(prompt: Prompt, rng: Random) -> None:
    length = rng.choice([rng.randint(8, 60), rng.randint(60, 500)])
    prompt.text(AUDIO_START)
    spans = [prompt.span(Modality.AUDIO, AUDIO, audio_tokens(prompt, length))]
    prompt.text(AUDIO_END)
    prompt.add(Modality.AUDIO, spans, length)


def put_track(prompt: Prompt, rng: Random) -> None:
    """A video and its audio, one behind the other; `interleave` sorts them by time later."""
    merge = prompt.config["thinker_config"]["vision_config"]["spatial_merge_size"]
    row = t, h, w = sizes(rng, merge, rng.randint(1, 6))
    length = rng.choice([rng.randint(8, 60), rng.randint(60, 500)])
    prompt.text(START, AUDIO_START)
    video = prompt.span(Modality.VIDEO, VIDEO, t * h * w // merge**2)
    audio = prompt.span(Modality.AUDIO, AUDIO, audio_tokens(prompt, length))
    prompt.text(AUDIO_END, END)
    prompt.add(Modality.VIDEO, [video], row)
    prompt.add(Modality.AUDIO, [audio], length)
    prompt.blocks.append((video[0], audio[0], audio[1] + 1))


def put_picture(prompt: Prompt, rng: Random, video: bool) -> None:
    """A MiniCPM picture: a thumbnail, and perhaps slices in rows."""
    merge = 2 if prompt.config["downsample_mode"] == "4x" else 4
    modality, token = (Modality.VIDEO, VIDEO) if video else (Modality.IMAGE, IMAGE)

    def crop(size: tuple[int, int]) -> None:
        spans.append(prompt.span(modality, token, size[0] * size[1] // merge**2))
        stated.append(size)

    spans: list[tuple[int, int]] = []
    stated: list[tuple[int, int]] = []
    prompt.text(START)
    crop(sizes(rng, merge)[1:])
    prompt.text(END)
    rows, columns = rng.choice([(0, 0), (0, 0), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2)])
    even = rng.random() < 0.8
    size = sizes(rng, merge)[1:]
    for row in range(rows):
        for _ in range(columns):
            prompt.text(SLICE)
            crop(size if even else sizes(rng, merge)[1:])
            prompt.text(SLICE_END)
        if row < rows - 1:
            prompt.text(*[NEWLINE] * rng.choice([1, 1, 1, 2]))
    prompt.add(modality, spans, stated)


def random_prompt(model_type: str, rng: Random) -> Prompt:
    """A prompt with up to five media. `blocks` are interleaved videos whose ids still lie apart."""
    prompt = Prompt(model_type, config_of(model_type, rng))
    family = prompt.family
    omni = family in ("qwen2_5_omni", "qwen3_omni_moe")
    prompt.use_audio_in_video = omni and rng.random() < 0.4
    prompt.words(rng)
    for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4, 5])):
        video = family not in IMAGE_ONLY and rng.random() < 0.5
        if family == "minicpmv4_7":
            put_picture(prompt, rng, video)
            if rng.random() < 0.3:
                prompt.text(NEWLINE)
        elif omni and rng.random() < 0.3:
            put_audio(prompt, rng)
        elif video and prompt.use_audio_in_video:
            put_track(prompt, rng)
        else:
            put_grid(prompt, rng, video)
        if rng.random() < 0.7:
            prompt.words(rng)
    if not prompt.ids:
        prompt.words(rng, 1)
    videos = len(prompt.stated(Modality.VIDEO))
    if family == "qwen2_5_vl" or omni:
        pace = [rng.choice([0.0, 0.04, 1 / 3, 0.5, 0.7, 1.0, 1.24, 9.0, rng.random() * 3]) for _ in range(videos)]
        kinds = ["float32", "float64", None] if omni else ["float32", "float64", None, "none"]
        kind = rng.choice(kinds)
        if kind != "none" and videos:
            prompt.seconds = np.float32(pace).tolist() if kind == "float32" else pace
            prompt.seconds_dtype = kind
    return prompt


def interleave(prompt: Prompt, positions: np.ndarray) -> Prompt:
    """The same prompt with the tokens of every interleaved video in order of time.

    `positions` are the reference's, for the prompt as it was: they give each video's first position.
    Written token by token, as the processors do it.
    """
    ids = list(prompt.ids)
    videos = iter(range(len(prompt.stated(Modality.VIDEO))))
    media = {modality: list(entries) for modality, entries in prompt.media.items()}
    config = prompt.config["thinker_config"]
    rate, merge = config["position_id_per_seconds"], config["vision_config"]["spatial_merge_size"]
    for start, middle, stop in prompt.blocks:
        k = next(videos)
        t, h, w = prompt.stated(Modality.VIDEO)[k]
        base = positions[0, start]
        pace = np.float32(prompt.seconds[k] if prompt.seconds else 1.0)
        clock = np.arange(t, dtype=np.float32) * pace * np.float32(rate)
        frames = np.repeat(clock if prompt.family == "qwen3_omni_moe" else clock.astype(np.int64), h * w // merge**2)
        audio = np.arange(stop - middle)
        if prompt.family == "qwen3_omni_moe":
            shown = list((frames + base).astype(np.float32))
            heard = list(audio.astype(np.float32) + base)
            mixed: list[int] = []
            while shown and heard:
                mixed.append(VIDEO if shown[0] <= heard[0] else AUDIO)
                (shown if mixed[-1] == VIDEO else heard).pop(0)
            mixed += [VIDEO] * len(shown) + [AUDIO] * len(heard)
        else:
            mixed = chunks(frames.tolist(), audio.tolist(), rate * config["seconds_per_chunk"])
        ids[start:stop] = mixed
        for modality, token, place in ((Modality.VIDEO, VIDEO, start), (Modality.AUDIO, AUDIO, middle)):
            runs = runs_of(mixed, token, start)
            entries = media[modality]
            index = next(j for j, (spans, _) in enumerate(entries) if spans[0][0] == place)
            entries[index] = (runs, entries[index][1])
    types = [2 if i == VIDEO else kind if i != AUDIO else 3 for i, kind in zip(ids, prompt.types, strict=True)]
    return Prompt(
        prompt.model_type,
        prompt.config,
        ids,
        types,
        media,
        prompt.seconds,
        prompt.seconds_dtype,
        prompt.use_audio_in_video,
    )


def chunks(frames: list[int], audio: list[int], ticks: int) -> list[int]:
    """Chunk by chunk, frames first; a token that reaches the next chunk's first tick begins it."""
    parts: list[list[list[int]]] = []
    for track, token in ((frames, VIDEO), (audio, AUDIO)):
        pieces: list[list[int]] = [[]]
        for tick in track:
            if tick >= len(pieces) * ticks:
                pieces.append([])
            pieces[-1].append(token)
        parts.append(pieces)
    longest = max(map(len, parts))
    return [token for k in range(longest) for pieces in parts for token in (pieces[k : k + 1] or [[]])[0]]


def runs_of(tokens: list[int], token: int, offset: int) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for k, found in enumerate(tokens, offset):
        if found != token:
            continue
        if runs and runs[-1][1] == k - 1:
            runs[-1] = (runs[-1][0], k)
        else:
            runs.append((k, k))
    return runs
