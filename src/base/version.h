// What this program calls itself, on the command line and in the files it writes.
#pragma once

#define TRIREME_VERSION "trireme 0.1.0"
