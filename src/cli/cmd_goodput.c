// `trireme goodput`: says what share of a run's time was training, and what took the rest.
#include "base/file.h"
#include "cli/cli.h"
#include "report/goodput_report.h"
#include <stdio.h>

static Status write_page(const Options *options, const Goodput *goodput, const char *path) {
    Text html = {0};
    goodput_page(goodput, path, &html);
    Status status = file_write(options->html, text_string(&html), html.size);
    text_free(&html);
    return status == OK ? OK : fail(status, "--html %s", fail_message());
}

static Status tell(const Options *options, const Goodput *goodput, const char *path) {
    Text text = {0};
    if (options->html) TRY(write_page(options, goodput, path));
    if (options->json)
        goodput_json(goodput, path, &text);
    else
        goodput_print(goodput, path, &text);
    fputs(text_string(&text), stdout);
    text_free(&text);
    return OK;
}

Status cmd_goodput(Options *options) {
    Goodput goodput;
    if (options->positional.count != 1)
        return fail(ERR_USAGE,
                    "goodput takes one run: its ledger, or its --save folder; such as trireme goodput "
                    "checkpoints");
    const char *path = options->positional.items[0];
    TRY(goodput_read(&goodput, path));
    Status status = tell(options, &goodput, path);
    goodput_free(&goodput);
    return status;
}
