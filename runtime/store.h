/* Made by "go test ./store -run TestHeader -update" of package store, which names these. Do not edit. */
#ifndef UNSPOOL_STORE_H
#define UNSPOOL_STORE_H

#define US_STORE_VAR   "UNSPOOL_TABLES" /* the variable that names other directories */
#define US_STORE_DIRS  "/var/cache/unspool-tables:/usr/lib/unspool/tables" /* of all users */
#define US_STORE_MAGIC 0x65726f74u /* ends a table's file */

#endif
