"""From options to the record an engine is made from: look the model up, then resolve.

Reads the model's small files, never a weight.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace.config.args import EngineArgs
from headrace.config.engine import EngineConfig
from headrace.config.resolve import resolve
from headrace.errors import ConfigError
from headrace.hub.lookup import find_model
from headrace.text.tokenizer import tokenizer_file


def make_engine_config(args: EngineArgs) -> EngineConfig:
    """Find the model (fetching it if it must be) and decide all settings.

    Raises:
        ConfigError: a setting that cannot work, in one line.
        ModelError: the model cannot be found or its files do not make sense.
    """
    facts = find_model(
        args.model,
        revision=args.revision,
        download_dir=args.download_dir,
        hf_token=args.hf_token,
        tokenizer=args.tokenizer,
        needs_weights=args.load_format != "dummy",
    )
    tokenizer = None if args.skip_tokenizer_init else facts.tokenizer
    if tokenizer is not None and Path(tokenizer).is_dir():
        tokenizer_file(Path(tokenizer))  # missing: told now, not after loading the weights
    template = args.chat_template
    if template is not None:
        args = replace(args, chat_template=_template_text(template))
    return resolve(args, facts)


def _template_text(given: str) -> str:
    """The template: what is in the file of that name, else the text itself when it looks like one.

    Raises:
        ConfigError: neither.
    """
    if "{" in given or "\n" in given:
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat_template: cannot read {given}: {error}") from None
