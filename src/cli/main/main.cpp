#include "cli/app.h"

int main(int argc, char** argv) {
  return braid::run_cli(argc, argv);
}
