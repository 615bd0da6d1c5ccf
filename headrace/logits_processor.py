"""What a custom logits processor is: the contract between the engine and code of its operator.

Processors are named by import path when an engine is made (`logits_processors`), live in the
process that samples, and see NumPy rows. Which requests they change is for them to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, cast

from headrace.config.engine import EngineConfig
from headrace.errors import ConfigError
from headrace.import_path import load_import_path
from headrace.sampling_params import SamplingParams

OPTION = "logits_processors"

RowProcessor: TypeAlias = Callable[[Sequence[int], Any], Any]
"""Called before each token of one request with (output_token_ids, logits).

`logits` is the request's row of the step, a NumPy array float32 [vocab_size]. Change it in place,
or return another array of that shape. The row is only valid during the call. Minus infinity
forbids a token. An exception ends this request with an error and no other.
"""


class LogitsProcessor(Protocol):
    """Made once per engine, in the process that samples.

    ```python
    class Favour:
        def __init__(self, config): ...

        def new_req_logits_processor(self, params):
            token_id = (params.extra_args or {}).get("favour")
            if token_id is None:
                return None  # this request costs nothing

            def favour(output_token_ids, logits):
                logits[token_id] += 5.0

            return favour
    ```

    It comes first: masks, bias, penalties and sampling follow on what it leaves. Log-probabilities
    that are reported stay those of the model's own logits. A class may have a classmethod
    `validate_params(params)`, called in the front process for every request; what it raises
    (ValueError) refuses the request.
    """

    def __init__(self, config: EngineConfig) -> None: ...

    def new_req_logits_processor(self, params: SamplingParams) -> RowProcessor | None:
        """What is to be done for one request; None for nothing.

        Called again for the same request after a preemption. State a processor keeps for a request
        must follow from its parameters and output alone.
        """
        ...


def load_logits_processors(paths: Sequence[str]) -> list[type[LogitsProcessor]]:
    """The classes at these import paths.

    Raises:
        ConfigError: something that cannot be imported, or is no processor.
    """
    classes: list[type[LogitsProcessor]] = []
    for path in paths:
        found = load_import_path(OPTION, path)
        if not isinstance(found, type) or not hasattr(found, "new_req_logits_processor"):
            raise ConfigError(
                f"{OPTION}: {path} is not a class with a method new_req_logits_processor"
            )
        classes.append(cast("type[LogitsProcessor]", found))
    return classes
