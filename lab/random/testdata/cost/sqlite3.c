// Fills a table in memory, and asks it, so many times.
#include <stdio.h>
#include <stdlib.h>
#include "sqlite3.h"

static int done(sqlite3 *db, const char *sql) {
	if (sqlite3_exec(db, sql, 0, 0, 0) == SQLITE_OK) return 1;
	fprintf(stderr, "%s: %s\n", sql, sqlite3_errmsg(db));
	return 0;
}

int main(int argc, char **argv) {
	for (int n = atoi(argv[1]); n > 0; n--) {
		sqlite3 *db;
		if (sqlite3_open(":memory:", &db) != SQLITE_OK) return 1;
		if (!done(db, "create table t(a integer primary key, b, c text); create index i on t(b);"
				"with recursive s(x) as (select 1 union all select x + 1 from s where x < 20000)"
				"insert into t select x, x * 7919 % 10007, printf('row %d', x) from s;") ||
			!done(db, "select b % 10, count(*), max(c) from t where b > 100 group by b % 10 order by 2;"
				"select sum(length(t.c)) from t join t as u on t.b = u.a where u.c like '%7%';") ||
			!done(db, "update t set c = c || 'x' where b < 3000; delete from t where a % 3 = 0;"))
			return 1;
		sqlite3_close(db);
	}
	return 0;
}
