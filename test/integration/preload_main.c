/* A job's main program, in plain C and without any NCCL of its own: it loads the library that calls NCCL, as Python
 * loads PyTorch.
 *
 *   preload-main local|global JOB [SECOND_NCCL] -- SCENARIO...
 *
 * loads the shared library JOB with RTLD_LOCAL or RTLD_GLOBAL, then SECOND_NCCL if there is one, and runs JOB's
 * run_job(arguments after --).
 *
 *   preload-main missing
 *
 * calls NCCL functions as they are in the process, although it has loaded no NCCL. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int run_without_nccl(void) {
  int (*get_unique_id)(void*) = NULL;
  char id[128];
  *(void**)&get_unique_id = dlsym(RTLD_DEFAULT, "ncclGetUniqueId");
  if (get_unique_id == NULL) {
    puts("no symbol");
    return 1;
  }
  printf("result %d\n", get_unique_id(id));
  printf("result %d\n", get_unique_id(id));
  return 0;
}

int main(int argc, char** argv) {
  int first = 1;
  void* job;
  int (*run_job)(int, char**) = NULL;
  if (argc == 2 && strcmp(argv[1], "missing") == 0) {
    return run_without_nccl();
  }
  while (first < argc && strcmp(argv[first], "--") != 0) {
    ++first;
  }
  if (first < 3 || first + 1 >= argc) {
    fputs("usage: preload-main local|global JOB [SECOND_NCCL] -- SCENARIO...\n", stderr);
    return 2;
  }
  job = dlopen(argv[2], RTLD_NOW | (strcmp(argv[1], "local") == 0 ? RTLD_LOCAL : RTLD_GLOBAL));
  if (job == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  if (first == 4 && dlopen(argv[3], RTLD_NOW | RTLD_LOCAL) == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  *(void**)&run_job = dlsym(job, "run_job");
  return run_job == NULL ? 2 : run_job(argc - first - 1, argv + first + 1);
}
