"""``structgen completion``: the scripts with which bash, zsh and fish complete command lines.

The scripts ask structgen itself, by click's protocol.  In addition to click's items, ``plain`` and ``file`` (the shell
shall complete a file's name), they know ``path``: a file or folder that fits, which the shell quotes; ``file`` holds
only where there is none.
"""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from structgen.cli.command import COMPLETION_VARIABLE, Command, output_options
from structgen.cli.terminal import DONE

__all__ = ["completion", "register"]

# -o filenames: bash quotes what it inserts, and ends a folder with a slash and no space.
_BASH: Final = """\
%(complete_func)s() {
    local response completion type value
    response=$(IFS=$'\\n'; env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" \
%(complete_var)s=bash_complete "$1")
    COMPREPLY=()
    while IFS= read -r completion; do
        type=${completion%%%%,*} value=${completion#*,}
        case $type in
            path) compopt -o filenames; COMPREPLY+=("${value%%/}") ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done <<< "$response"
    return 0
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_ZSH: Final = """\
#compdef %(prog_name)s
%(complete_func)s() {
    local -a response plain described files folders
    local type value help ask_shell
    (( ! $+commands[%(prog_name)s] )) && return 1
    response=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \
%(complete_var)s=zsh_complete %(prog_name)s)}")
    for type value help in "${response[@]}"; do
        case $type in
            path) if [[ $value == */ ]]; then folders+=("$value"); else files+=("$value"); fi ;;
            file) ask_shell=1 ;;
            plain) if [[ $help == _ ]]; then plain+=("$value"); else described+=("$value:$help"); fi ;;
        esac
    done
    (( $#described )) && _describe -V unsorted described -U
    (( $#plain )) && compadd -U -V unsorted -a plain
    (( $#files )) && compadd -U -a files
    (( $#folders )) && compadd -U -S '' -a folders
    if [[ -n $ask_shell ]] && (( ! $#files && ! $#folders )); then
        [[ $PREFIX == --*=* ]] && compset -P '*='
        _path_files -f
    fi
    return 0
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

# Fish itself sets no space after a slash.
_FISH: Final = """\
function %(complete_func)s
    set -l response (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) \
COMP_CWORD=(commandline -t) %(prog_name)s)
    set -l found 0
    set -l ask_shell 0
    for completion in $response
        set -l item (string split -m 1 "," -- $completion)
        switch $item[1]
            case path
                set found 1
                echo $item[2]
            case file
                set ask_shell 1
            case plain
                echo $item[2]
        end
    end
    if test $ask_shell = 1 -a $found = 0
        __fish_complete_path (commandline -ct)
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class _Bash(BashComplete):
    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        before = ["", *args]  # bash has an equals sign between option and value as a word of its own
        args = [each for each, last in zip(args, before, strict=False) if each != "=" or not last.startswith("--")]
        return args, incomplete


class _WholeWords(ShellComplete):
    """For shells that complete ``--option=value`` as one word, where click gives the value alone."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        items = super().get_completions(args, incomplete)
        option, equals, _ = incomplete.partition("=")
        if equals and option.startswith("--"):
            for item in items:
                if item.type != "file":
                    item.value = f"{option}={item.value}"
        return items


class _Zsh(_WholeWords, ZshComplete):
    source_template = _ZSH


class _Fish(_WholeWords, FishComplete):
    source_template = _FISH


_SHELLS: Final[dict[str, type[ShellComplete]]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


def register() -> None:
    """Let click answer these scripts, and write them."""
    for shell in _SHELLS.values():
        add_completion_class(shell)


@click.command(
    cls=Command,
    examples=(
        "structgen completion bash -o ~/.local/share/bash-completion/completions/structgen",
        "structgen completion fish -o ~/.config/fish/completions/structgen.fish",
    ),
)
@click.argument("shell", type=click.Choice(tuple(_SHELLS)))
@output_options
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Write the script with which a shell completes structgen's command lines.

    It completes commands, options and their choices, names of models, samplers, drafters and policies, and files of
    the kinds that a command reads. Have your shell read it when it starts:

    \b
    bash (4.4 or newer), in ~/.bashrc:      eval "$(structgen completion bash)"
    zsh, in ~/.zshrc after compinit:        eval "$(structgen completion zsh)"
    fish, in ~/.config/fish/config.fish:    structgen completion fish | source
    """  # noqa: D301  click reads the backspace
    made = _SHELLS[shell](context.find_root().command, {}, "structgen", COMPLETION_VARIABLE)
    click.echo(made.source(), nl=False)
    return DONE
