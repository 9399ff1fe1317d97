/*
 * dlopen.c - loads plug-ins (plugin.c), lets each work, and unloads it: gcc dlopen.c
 *
 *	dlopen TURNS MS PLUGIN...
 *
 * What is loaded where something was unloaded gets its addresses. A PLUGIN "OLD=NEW" renames NEW to OLD and loads that.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	int turns = atoi(argv[1]);
	double ms = atof(argv[2]);
	const void *last = NULL;
	int same = 0, loads = 0;

	for (int t = 0; t < turns; t++) {
		for (int i = 3; i < argc; i++) {
			char *fresh = strchr(argv[i], '=');
			void *so, *f;
			Dl_info info;

			if (fresh) {
				*fresh++ = 0;
				if (rename(fresh, argv[i]))
					return perror(fresh), 1;
			}
			so = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
			f = so ? dlsym(so, "work") : NULL;
			if (!f || !dladdr(f, &info))
				return fputs(dlerror(), stderr), 1;
			((void (*)(int, double))f)(10 + i, ms);
			same += info.dli_fbase == last;
			loads++;
			last = info.dli_fbase;
			if (dlclose(so))
				return fputs(dlerror(), stderr), 1;
		}
	}
	printf("%d of %d at the address of the one before\n", same, loads);
	return 0;
}
