// Prints the processors that a list of control groups, mounted in a folder, allows: LIST FOLDER.
#include "runtime/quota.h"

int main(int, char** argv) { printf("%d\n", tracea::read_quota(argv[1], argv[2])); }
