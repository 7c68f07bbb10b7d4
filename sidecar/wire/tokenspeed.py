"""The TokenSpeed dialect's field tables: what stands at which position of which array.

Positions count from 0, the tag included. The wire is append-only: later engines add trailing fields,
so nothing here may be read as "and there is no more".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

GENERATE_TAG: Final = "TokenizedGenerateReqInput"
ABORT_TAG: Final = "AbortReq"
OUTPUT_TAG: Final = "BatchTokenIDOutSlim"
ENGINE_DEAD: Final = b"ENGINE_CORE_DEAD"


class Modality(IntEnum):
    """An item's modality, as its wire value."""

    IMAGE = 1
    VIDEO = 2
    AUDIO = 3


class Request(IntEnum):
    """Fields of a tagged `TokenizedGenerateReqInput`."""

    TAG = 0
    RID = 1
    HTTP_WORKER_IPC = 2
    INPUT_TEXT = 3
    INPUT_IDS = 4
    SAMPLING_PARAMS = 5
    RETURN_LOGPROB = 6
    LOGPROB_START_LEN = 7
    TOP_LOGPROBS_NUM = 8
    TOKEN_IDS_LOGPROB = 9
    STREAM = 10
    INPUT_EMBEDS = 11
    SESSION_PARAMS = 12
    CUSTOM_LOGIT_PROCESSOR = 13
    RETURN_HIDDEN_STATES = 14
    CREATED_TIME = 15
    BOOTSTRAP_HOST = 16
    BOOTSTRAP_PORT = 17
    BOOTSTRAP_ROOM = 18
    INPUT_MULTI_IDS = 19
    INPUT_EXTRA_INFOS = 20
    INPUT_IDS_UNPADDED = 21
    MULTIMODAL_INPUTS = 22
    VALIDATION_ERROR = 23
    DATA_PARALLEL_RANK = 24


REQUEST_MIN_FIELDS: Final = 6
"""The engine needs the tag, the rid, and everything up to the sampling params."""

REQUEST_DEFAULTS: Final[Mapping[Request, Any]] = {
    Request.RETURN_LOGPROB: False,
    Request.LOGPROB_START_LEN: -1,
    Request.TOP_LOGPROBS_NUM: 0,
    Request.STREAM: False,
    Request.RETURN_HIDDEN_STATES: False,
    Request.CREATED_TIME: 0.0,
}
"""What a field has when the array ends before it; a field that is not named here has nil."""


class Sampling(IntEnum):
    """Fields of the untagged `SamplingParams`."""

    MAX_NEW_TOKENS = 0
    STOP = 1
    STOP_TOKEN_IDS = 2
    TEMPERATURE = 3
    TOP_P = 4
    TOP_K = 5
    MIN_P = 6
    FREQUENCY_PENALTY = 7
    PRESENCE_PENALTY = 8
    REPETITION_PENALTY = 9
    MIN_NEW_TOKENS = 10
    JSON_SCHEMA = 11
    REGEX = 12
    EBNF = 13
    STRUCTURAL_TAG = 14
    IGNORE_EOS = 15
    SKIP_SPECIAL_TOKENS = 16
    SPACES_BETWEEN_SPECIAL_TOKENS = 17
    NO_STOP_TRIM = 18
    THINKING_BUDGET = 19
    CUSTOM_PARAMS = 20
    STREAM_INTERVAL = 21
    LOGIT_BIAS = 22
    SEED = 23
    LOGPROBS = 24
    N = 25
    STOP_STRS = 26
    STOP_STR_MAX_LEN = 27
    IS_NORMALIZED = 28


class Media(IntEnum):
    """Fields of the untagged `MultimodalInputs`."""

    MM_ITEMS = 0
    IM_TOKEN_ID = 1
    VIDEO_TOKEN_ID = 2
    MROPE_POSITIONS = 3
    MROPE_POSITION_DELTA = 4
    MROPE_POSITION_DELTA_SCALAR = 5
    RESERVED = 6


class Item(IntEnum):
    """Fields of the untagged `MultimodalDataItem`."""

    MODALITY = 0
    HASH = 1
    PAD_VALUE = 2
    OFFSETS = 3
    FEATURE = 4
    FEATURE_SHM = 5
    MODEL_SPECIFIC_DATA = 6
    ENCODED = 7
    ENCODED_DEEPSTACK = 8
    ENCODE_HANDSHAKE = 9
