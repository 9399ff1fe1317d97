// SPDX-License-Identifier: Apache-2.0
// eh_plugin.cc is a module that eh_shapes.cc loads and unloads.
#include <cstdio>
#include <stdexcept>

struct in_plugin {
	~in_plugin() { puts("plugin's cleanup"); }
};

static int tried()
{
	try {
		throw 5;
	} catch (int n) {
		return n;
	}
}
static int in_constructor = tried();

extern "C" __attribute__((visibility("default"))) int plugin(int (*f)(int), int n)
{
	if (n == 3)
		throw 3;
	in_plugin p;
	if (n == 1)
		throw std::runtime_error("from the plugin");
	if (n == 2) {
		try {
			return f(n);
		} catch (const std::exception &e) {
			printf("plugin caught %s\n", e.what());
			throw;
		}
	}
	return f(n) + in_constructor;
}
