/* Prints the layouts and numbers of libunwind's interface: of its header, or with OURS of ours. */
#ifdef OURS
#include "abi.h"
#else
#include <libunwind-x86_64.h>
#endif

#include <stddef.h>
#include <stdio.h>

#define SIZE(t) printf("sizeof(" #t ") %zu\n", sizeof(t))
#define AT(t, f) printf("offsetof(" #t ", " #f ") %zu\n", offsetof(t, f))
#define VALUE(n) printf(#n " %d\n", (int)n)

int main(void)
{
	SIZE(unw_cursor_t);
	SIZE(unw_fpreg_t);
	SIZE(unw_accessors_t);
	AT(unw_accessors_t, find_proc_info);
	AT(unw_accessors_t, put_unwind_info);
	AT(unw_accessors_t, get_dyn_info_list_addr);
	AT(unw_accessors_t, access_mem);
	AT(unw_accessors_t, access_reg);
	AT(unw_accessors_t, access_fpreg);
	AT(unw_accessors_t, resume);
	AT(unw_accessors_t, get_proc_name);
	SIZE(unw_proc_info_t);
	AT(unw_proc_info_t, start_ip);
	AT(unw_proc_info_t, end_ip);
	AT(unw_proc_info_t, lsda);
	AT(unw_proc_info_t, handler);
	AT(unw_proc_info_t, gp);
	AT(unw_proc_info_t, flags);
	AT(unw_proc_info_t, format);
	AT(unw_proc_info_t, unwind_info_size);
	AT(unw_proc_info_t, unwind_info);
	AT(unw_proc_info_t, extra);
	SIZE(unw_save_loc_t);
	AT(unw_save_loc_t, type);
	AT(unw_save_loc_t, u.addr);
	AT(unw_save_loc_t, u.regnum);
	SIZE(unw_dyn_info_t);
	AT(unw_dyn_info_t, next);
	AT(unw_dyn_info_t, prev);
	AT(unw_dyn_info_t, start_ip);
	AT(unw_dyn_info_t, end_ip);
	AT(unw_dyn_info_t, gp);
	AT(unw_dyn_info_t, format);
	AT(unw_dyn_info_t, load_offset);
	AT(unw_dyn_info_t, u.rti.name_ptr);
	AT(unw_dyn_info_t, u.rti.segbase);
	AT(unw_dyn_info_t, u.rti.table_len);
	AT(unw_dyn_info_t, u.rti.table_data);
	AT(unw_dyn_info_t, u.pi.name_ptr);
	AT(unw_dyn_info_t, u.pi.handler);
	AT(unw_dyn_info_t, u.pi.flags);
	AT(unw_dyn_info_t, u.pi.regions);
	VALUE(UNW_ESUCCESS);
	VALUE(UNW_EUNSPEC);
	VALUE(UNW_ENOMEM);
	VALUE(UNW_EBADREG);
	VALUE(UNW_EREADONLYREG);
	VALUE(UNW_ESTOPUNWIND);
	VALUE(UNW_EINVALIDIP);
	VALUE(UNW_EBADFRAME);
	VALUE(UNW_EINVAL);
	VALUE(UNW_EBADVERSION);
	VALUE(UNW_ENOINFO);
	VALUE(UNW_CACHE_NONE);
	VALUE(UNW_CACHE_GLOBAL);
	VALUE(UNW_CACHE_PER_THREAD);
	VALUE(UNW_SLT_NONE);
	VALUE(UNW_SLT_MEMORY);
	VALUE(UNW_SLT_REG);
	VALUE(UNW_INFO_FORMAT_DYNAMIC);
	VALUE(UNW_INFO_FORMAT_TABLE);
	VALUE(UNW_INFO_FORMAT_REMOTE_TABLE);
	VALUE(UNW_INFO_FORMAT_ARM_EXIDX);
	VALUE(UNW_INFO_FORMAT_IP_OFFSET);
	VALUE(UNW_X86_64_RIP);
	VALUE(UNW_X86_64_CFA);
	return 0;
}
