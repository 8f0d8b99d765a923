/* SPDX-License-Identifier: Apache-2.0 */
/* Help, the man page and what bash completion reads: three prints of the same tables. */
#include <ctype.h>
#include <string.h>

#include "cli.h"
#include "term.h"

/* Paragraphs of `text`, wrapped to the terminal, each line after `indent` blanks. */
static void print_wrapped(FILE *to, const char *text, int indent)
{
    const int wide = term_width() > 100 ? 100 : term_width();
    int column = 0;
    for (const char *at = text; *at != '\0';) {
        if (at[0] == '\n') {
            fputs(column > 0 ? "\n\n" : "\n", to);
            column = 0;
            while (*at == '\n')
                at++;
            continue;
        }
        if (*at == ' ') {
            at++;
            continue;
        }
        const int length = (int)strcspn(at, " \n");
        if (column > 0 && column + 1 + length > wide) {
            fputc('\n', to);
            column = 0;
        }
        column += fprintf(to, "%*s%.*s", column == 0 ? indent : 1, "", length, at);
        at += length;
    }
    if (column > 0)
        fputc('\n', to);
}

static void print_option(FILE *to, const struct option_row *row)
{
    char left[96];
    const int length =
        snprintf(left, sizeof left, "  %c%c%s--%s%s%s", row->letter != 0 ? '-' : ' ',
                 row->letter != 0 ? row->letter : ' ', row->letter != 0 ? ", " : "  ", row->name,
                 row->arg != NULL ? " " : "", row->arg != NULL ? row->arg : "");
    fprintf(to, "%s%s%s", style_on(to, CYAN), left, style_off(to));
    if (length > 30) {
        fputc('\n', to);
        print_wrapped(to, row->help, 32);
        return;
    }
    /* The first line goes beside the option, the rest below its beginning. */
    const int room = (term_width() > 100 ? 100 : term_width()) - 32;
    size_t cut = strlen(row->help);
    if (room > 20 && cut > (size_t)room) {
        cut = (size_t)room;
        while (cut > 0 && row->help[cut] != ' ')
            cut--;
    }
    fprintf(to, "%*s%.*s\n", 32 - length, "", (int)cut, row->help);
    if (row->help[cut] != '\0')
        print_wrapped(to, row->help + cut, 32);
}

/* "# what", and the command's lines below. */
static void print_example(FILE *to, const struct example *e)
{
    fprintf(to, "  %s# %s%s\n", style_on(to, DIM), e->what, style_off(to));
    for (const char *at = e->command; *at != '\0';) {
        const int length = (int)strcspn(at, "\n");
        fprintf(to, "  %.*s\n", length, at);
        at += length + (at[length] == '\n');
    }
}

void help_command(FILE *to, const struct command *c)
{
    fprintf(to, "%squern %s%s: %s\n\n  quern %s [options]%s%s\n\n", style_on(to, BOLD), c->name,
            style_off(to), c->summary, c->name, c->operands[0] != '\0' ? " " : "", c->operands);
    print_wrapped(to, c->about, 0);
    fprintf(to, "\n%sOptions%s\n", style_on(to, BOLD), style_off(to));
    for (int t = 0; t < MAX_TABLES && c->tables[t] != NULL; t++) {
        for (const struct option_row *row = c->tables[t]; row->name != NULL; row++)
            print_option(to, row);
    }
    fprintf(to, "\n%sExamples%s\n", style_on(to, BOLD), style_off(to));
    for (const struct example *e = c->examples; e->what != NULL; e++)
        print_example(to, e);
}

void help_overview(FILE *to, const struct command *const *commands)
{
    fprintf(to,
            "%squern%s %s: matrix products and convolutions with block-quantized weights\n\n"
            "  quern COMMAND [options]      quern help COMMAND      quern --version\n\n"
            "%sCommands%s\n",
            style_on(to, BOLD), style_off(to), qn_version(), style_on(to, BOLD), style_off(to));
    for (int i = 0; commands[i] != NULL; i++)
        fprintf(to, "  %s%-10s%s %s\n", style_on(to, CYAN), commands[i]->name, style_off(to),
                commands[i]->summary);
    fprintf(to, "\n%sTo begin with%s\n", style_on(to, BOLD), style_off(to));
    for (int i = 0; commands[i] != NULL; i++) {
        const struct example *e = commands[i]->examples;
        if (e->what != NULL && i < 4)
            print_example(to, e);
    }
}

void dump_options(const struct command *const *commands)
{
    for (int i = 0; commands[i] != NULL; i++) {
        for (int t = 0; t < MAX_TABLES && commands[i]->tables[t] != NULL; t++) {
            for (const struct option_row *row = commands[i]->tables[t]; row->name != NULL; row++)
                printf("%s\t--%s\t%s\n", commands[i]->name, row->name,
                       row->arg != NULL ? row->arg : "-");
        }
    }
}

/* ------------------------------------------------------------------------------------ man page */

/* One word for mdoc: a backslash is \e, a minus stays one, and no word begins a line as a macro. */
static int man_word(const char *word, int length, int column)
{
    if (column == 0 && (word[0] == '.' || word[0] == '\''))
        fputs("\\&", stdout);
    for (int i = 0; i < length; i++) {
        if (word[i] == '\\')
            fputs("\\e", stdout);
        else if (word[i] == '-')
            fputs("\\-", stdout);
        else
            putchar(word[i]);
    }
    return length;
}

/* Text for mdoc: short lines, each sentence and paragraph begins one. */
static void man_text(const char *text)
{
    int column = 0;
    for (const char *at = text; *at != '\0';) {
        const int length = (int)strcspn(at, " \n");
        if (column > 0 && column + 1 + length > 70) {
            putchar('\n');
            column = 0;
        }
        if (length > 0 && column > 0)
            column += printf(" ");
        column += man_word(at, length, column);
        const int ends = length > 0 && at[length - 1] == '.' && at[length] == ' ' &&
                         isupper((unsigned char)at[length + 1]);
        at += length;
        const int is_paragraph = *at == '\n';
        at += strspn(at, " \n");
        if (is_paragraph || ends) {
            fputs(is_paragraph ? "\n.Pp\n" : "\n", stdout);
            column = 0;
        }
    }
    if (column > 0)
        putchar('\n');
}

static void man_option(const struct option_row *row)
{
    fputs(".It ", stdout);
    if (row->letter != 0)
        printf("Fl %c , ", row->letter);
    printf("Fl -%s", row->name);
    if (row->arg != NULL)
        printf(" Ar %s", row->arg);
    putchar('\n');
    man_text(row->help);
}

static void man_command(const struct command *c)
{
    printf(".Ss quern %s\n.Nm Cm %s\n.Op Ar options\n", c->name, c->name);
    if (c->operands[0] != '\0')
        printf(".Ar %s\n", c->operands);
    fputs(".Pp\n", stdout);
    man_text(c->about);
    fputs(".Bl -tag -width Ds\n", stdout);
    for (int t = 0; t < MAX_TABLES && c->tables[t] != NULL; t++) {
        for (const struct option_row *row = c->tables[t]; row->name != NULL; row++)
            man_option(row);
    }
    fputs(".El\n.Pp\nExamples:\n.Bd -literal -offset indent\n", stdout);
    for (const struct example *e = c->examples; e->what != NULL; e++)
        printf("# %s\n%s\n", e->what, e->command);
    fputs(".Ed\n", stdout);
}

void dump_man(const struct command *const *commands)
{
    fputs(".\\\" SPDX-License-Identifier: Apache-2.0\n"
          ".\\\" Made by `quern --dump-man > cli/quern.1` from the tables in cli/cmd_*.c.\n"
          ".Dd $Mdocdate$\n.Dt QUERN 1\n.Os\n"
          ".Sh NAME\n.Nm quern\n"
          ".Nd matrix products and convolutions with block-quantized weights\n"
          ".Sh SYNOPSIS\n.Nm\n.Ar command\n.Op Ar options\n"
          ".Nm\n.Cm help\n.Op Ar command\n.Nm\n.Fl -version\n"
          ".Sh DESCRIPTION\n.Nm\n"
          "quantizes the weights of neural networks to a few bits, looks into the result,\n"
          "and runs and measures products and convolutions with it.\n"
          "The commands are:\n.Bl -tag -width quantize\n",
          stdout);
    for (int i = 0; commands[i] != NULL; i++)
        printf(".It Cm %s\n%s\n", commands[i]->name, commands[i]->summary);
    fputs(".El\n.Sh COMMANDS\n", stdout);
    for (int i = 0; commands[i] != NULL; i++)
        man_command(commands[i]);
    fputs(".Sh WEIGHT FORMATS\n"
          "Formats are written\n.Ar code : Ns Ar group Op : Ns Ar shift Op : Ns Ar scale :\n"
          "int4:g128 (4 bits, groups of 128), int4:g128:zp (integer zero point),\n"
          "int4:g64:off (float offset), int8:pc (one scale a channel), int8:pt (one scale),\n"
          "int4:c64 (blocks of 64 input channels and all taps), nf4:g64, fp8:pc, e2m1:g32:e8m0,\n"
          "or one of the names q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs\n"
          "mxfp4 nvfp4, and f32 f16 bf16 for weights that are not quantized.\n"
          ".Sh ENVIRONMENT\n.Bl -tag -width QUERN_THREADS\n"
          ".It Ev QUERN_ISA\nWhat\n.Fl -isa\nsays, where it is not given.\n"
          ".It Ev QUERN_THREADS\nWhat\n.Fl -threads\nsays, where it is not given.\n"
          ".It Ev XDG_CONFIG_HOME\nThe constants that\n.Cm tune\nmeasures are in\n"
          ".Pa quern/tuning.json\nbelow it, or below\n.Pa ~/.config .\n"
          ".It Ev NO_COLOR\nIf set and not empty, no colour unless\n.Fl -color Cm always .\n"
          ".El\n"
          ".Sh EXIT STATUS\n.Bl -tag -width 130\n"
          ".It 0\nAll went well.\n"
          ".It 1\nA comparison or a check of results failed.\n"
          ".It 2\nThe command line makes no sense.\n"
          ".It 3\nAn input file is missing, damaged or not what it should be.\n"
          ".It 4\nThe library, the device or writing failed.\n"
          ".It 130\nStopped by Ctrl\\-C.\n.El\n",
          stdout);
}
