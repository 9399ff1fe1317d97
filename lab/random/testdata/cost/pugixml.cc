// Reads a document of some thousand elements, and asks it, so many times.
#include <cstdlib>
#include <string>
#include "pugixml.hpp"

int main(int argc, char **argv) {
	std::string text = "<list>";
	for (int i = 0; i < 5000; i++)
		text += "<item id=\"" + std::to_string(i) + "\"><name>n" + std::to_string(i * 7919 % 10007) + "</name><v>&lt;1&gt;</v></item>";
	text += "</list>";
	for (int n = std::atoi(argv[1]); n > 0; n--) {
		pugi::xml_document d;
		if (!d.load_string(text.c_str())) return 1;
		if (d.select_nodes("/list/item[@id mod 7 = 3]/name").size() != 714) return 1;
	}
	return 0;
}
