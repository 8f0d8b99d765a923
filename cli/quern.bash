# SPDX-License-Identifier: Apache-2.0
# bash completion for quern. It knows no option by itself: `quern --dump-options` prints a line
#     command <tab> --option <tab> argument
# for each of them, made from the tables that parse the command line. An argument is "-" for a
# switch, a list of words a|b|c, or what stands there in capitals: FILE, SPEC, N.

_quern() {
    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local command=${COMP_WORDS[1]:-} table argument
    COMPREPLY=()
    table=$("${COMP_WORDS[0]}" --dump-options 2>/dev/null) || return 0

    if [ "$COMP_CWORD" -eq 1 ] || { [ "$command" = help ] && [ "$COMP_CWORD" -eq 2 ]; }; then
        local words
        words=$(cut -f 1 <<<"$table" | sort -u)
        [ "$COMP_CWORD" -eq 1 ] && words="$words help --help --version"
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
        return 0
    fi

    # The value of the option before the cursor.
    argument=$(awk -F '\t' -v c="$command" -v o="$previous" '$1 == c && $2 == o { print $3 }' \
        <<<"$table")
    case $argument in
        '' | -) ;;
        *'|'*)
            mapfile -t COMPREPLY < <(compgen -W "${argument//|/ }" -- "$word")
            return 0
            ;;
        SPEC*)
            # A colon splits words in bash, so only the part before the first one is offered.
            mapfile -t COMPREPLY < <(compgen -W 'int2 int3 int4 int5 int6 int8 nf4 fp8 e2m1 q4_0
                q4_1 q5_0 q5_1 q8_0 q4_k q5_k q6_k iq4_nl mxfp4 nvfp4' -- "$word")
            return 0
            ;;
        *)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
            return 0
            ;;
    esac

    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(awk -F '\t' -v c="$command" \
            '$1 == c { print $2 }' <<<"$table")" -- "$word")
    else
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}

complete -F _quern quern
