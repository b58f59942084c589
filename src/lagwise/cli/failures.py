"""The report of a failure on the command line: one line on standard error."""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from typing import Any, NoReturn

import typer

from lagwise.cli.terminal import plain
from lagwise.extras import explained
from lagwise.outside import elsewhere
from lagwise.process import Stopped, is_first_to_say
from lagwise.tables import nearest

# typer exports no other of click's errors; depending on its version, click is a separate package or part of typer.
_ClickError: Any = typer.BadParameter.__mro__[2]
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory")  # torch's words, in a RuntimeError
_CANNOT_OPEN = "unable to open file <"  # torch's, in a RuntimeError; the system's words follow
_PEER_ENDED = ("Connection closed by peer", "Connection reset by peer")  # gloo's, in a RuntimeError
_LONGEST = 600  # characters
#: The command that does what a message asks for.
_COMMANDS = {
    "has not finished; resume it first": "lagwise train --resume RUN",
    "convert it to a state space first": "lagwise convert RUN",
    "then resume the run": "lagwise train --resume RUN",
}


def run(app: typer.Typer) -> NoReturn:
    """Run a command line and exit. Failures print one line, once for all processes of a group, and exit with status 2.
    Ctrl-C exits with status 130, and a training that SIGTERM stopped with 143, as shells report these signals.

    With ``LAGWISE_DEBUG=1`` the traceback is printed too.
    """
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
    except SystemExit:
        raise
    except BrokenPipeError:  # the reader of standard output closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except (KeyboardInterrupt, typer.Abort) as stop:
        # typer treats an EOFError as the user's Ctrl-D; here it means a truncated file.
        cause = stop.__cause__ or stop
        number = cause.number if isinstance(cause, Stopped) else signal.SIGINT
        status = _report(cause, app) if isinstance(cause, EOFError) else 128 + number
    except BaseException as error:  # a panic in tokenizers is not an Exception
        status = _report(error, app)
    sys.exit(status)


def _report(error: BaseException, app: typer.Typer) -> int:
    if os.environ.get("LAGWISE_DEBUG") == "1":
        traceback.print_exception(error)
    message = _with_options(" ".join(plain(_message(error)).split()), app)
    if len(message) > _LONGEST:
        message = f"{message[: _LONGEST * 2 // 3]} ... {message[-_LONGEST // 3 :]}"
    if message and is_first_to_say(message):
        typer.secho(f"error: {message}", fg="red", err=True)
    return 2


def _message(error: BaseException) -> str:
    if isinstance(error, _ClickError):
        return _usage_message(error)
    if isinstance(error, ModuleNotFoundError):
        error = explained(error)
    text = str(error)
    if isinstance(error, MemoryError) or any(words in text for words in _OUT_OF_MEMORY):
        return f"not enough memory{text and ': '}{text}"
    if any(words in text for words in _PEER_ENDED):
        return "another process of this training has ended; its own message says why"
    # Messages of lagwise, the operating system and imports name what the user can change; other messages may not.
    plain_types = OSError | FloatingPointError | ImportError
    if type(error) is ValueError or isinstance(error, plain_types) or text.startswith(_CANNOT_OPEN):
        commands = [f" ({command})" for words, command in _COMMANDS.items() if words in text]
        return "".join([text, *commands]) or type(error).__name__
    return f"unexpected {type(error).__name__}{text and ': '}{text} (LAGWISE_DEBUG=1 shows the traceback)"


def _with_options(message: str, app: typer.Typer) -> str:
    """Rewrite arguments in backticks, such as `out` or `kind=auto`, as options of the command that ran, or as keys of
    the recipe if it takes one."""
    command: Any = typer.main.get_command(app)
    for word in sys.argv[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    options = {each.name: each.opts[0] for each in command.params if each.opts[0].startswith("-")}
    takes_settings = any(each.name == "overrides" for each in command.params)

    def written(match: re.Match[str]) -> str:
        from lagwise.training.recipe import setting  # pydantic takes a while, and help needs none

        name, value = match[1], match[2] or ""
        if name in options:
            return f"{options[name]}{value.replace('=', ' ', 1)}"
        key = setting(name) if takes_settings else None
        return match[0] if key is None else f"{key}{value}"

    return re.sub(r"`(?:data\.)?(\w+)(=[^`]*)?`", written, message)


def _usage_message(error: Any) -> str:
    message, context = error.format_message(), getattr(error, "ctx", None)
    if not message or context is None:  # without any arguments, the help has been printed
        return message
    if advice := elsewhere(next(iter(re.findall("^No such command '([^']*)'", message)), None)):
        return f"command {advice}"
    if option := getattr(error, "option_name", None):
        message = f"No such option: {option}{_meant(option, context)}"
    return f"{message} (see '{context.command_path} --help')"


def _meant(option: str, context: Any) -> str:
    """Suggest what was meant by an option that a command does not have. click itself suggests any option that has some
    letters in common."""
    name = option.lstrip("-")
    if name in ("device", "cuda", "gpu", "cpu"):
        return "; a CUDA GPU is used if there is one, and the CPU with CUDA_VISIBLE_DEVICES= before the command"
    if near := nearest(name, [each.lstrip("-") for part in context.command.params for each in part.opts]):
        return f"; did you mean --{near}?"
    if context.command.name == "train":
        from lagwise.training.recipe import setting  # pydantic takes a while, and help needs none

        if key := setting(name.replace("-", "_")):
            return f"; settings are written without dashes: {key}=..."
    return ""
