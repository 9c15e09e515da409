// Configuration files where a build has no libyaml: --config is refused, the same options on the command line are not.
#include "base/libraries.h"
#include "config/table.h"

Status yaml_read(Options *options, const char *path) {
    (void)options;
    Text wish = {0};
    text_add(&wish, "--config %s", path);
    Status status = fail_without(LIBRARY_YAML, text_string(&wish));
    text_free(&wish);
    return status;
}
