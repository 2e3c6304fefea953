//! Devices, domains, memory and address handles, as a C program calls them.
#![allow(clippy::undocumented_unsafe_blocks, reason = "what is passed lives on the stack")]

use std::ffi::{CStr, c_char, c_void};
use std::io;
use std::ptr::{null, null_mut};

use remora_verbs::abi::*;
use remora_verbs::ibverbs::{ah, context, device, gid, mr, open, pd, port};

/// The `errno` that a failed call with a pointer as result has left.
fn outcome<T>(pointer: *mut T) -> Result<*mut T, i32> {
    let errno = io::Error::last_os_error().raw_os_error();
    if pointer.is_null() { Err(errno.unwrap_or(0)) } else { Ok(pointer) }
}

/// The first device, open.
fn open() -> *mut ibv_context {
    let mut count = 0;
    let list = unsafe { device::get_device_list(&mut count) };
    assert_eq!(count, 1);
    let first = unsafe { *list };
    assert!(unsafe { (*list.add(1)).is_null() });
    let name = unsafe { CStr::from_ptr(device::get_device_name(first)) };
    assert_eq!(name, c"remora0");
    assert_ne!(device::get_device_guid(first), 0);
    assert_eq!(device::get_device_index(first), -1, "the kernel knows no such device");
    let mut copy = unsafe { *first };
    copy.name[..3].copy_from_slice(&[b'm' as c_char, b'y' as c_char, 0]);
    assert_eq!(unsafe { CStr::from_ptr(device::get_device_name(&mut copy)) }, c"my");
    assert!(device::get_device_name(null_mut()).is_null());
    let opened = open::open_device(first);
    unsafe { device::free_device_list(list) };
    outcome(opened).unwrap()
}

/// The struct around a context, found as the header's inline functions find it.
fn table(context: *mut ibv_context) -> verbs_context {
    unsafe {
        assert_eq!((*context).abi_compat as usize, usize::MAX);
        *context.cast::<u8>().sub(std::mem::offset_of!(verbs_context, context)).cast()
    }
}

const ALL: i32 = (IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC) as i32;

#[test]
fn the_port_is_an_ethernet_port_with_one_gid() {
    let context = open();
    let mut attr = ibv_port_attr::zeroed();
    let ask = table(context).query_port.unwrap();
    assert_eq!(unsafe { ask(context, 1, &mut attr, size_of::<ibv_port_attr>()) }, 0);
    assert_eq!((attr.state, attr.link_layer), (IBV_PORT_ACTIVE, IBV_LINK_LAYER_ETHERNET as u8));
    assert_eq!(unsafe { ask(context, 2, &mut attr, size_of::<ibv_port_attr>()) }, libc::EINVAL);
    assert_ne!(attr.lid, 0, "on loopback there are LIDs");

    let mut old = [0xaa_u8; size_of::<ibv_port_attr>()];
    assert_eq!(unsafe { port::query_port(context, 1, old.as_mut_ptr().cast()) }, 0);
    assert_eq!(&old[48..], &[0xaa; 4], "the struct of old programs is shorter");

    let mut raw = ibv_gid { raw: [0; 16] };
    assert_eq!(unsafe { gid::query_gid(context, 1, 1, &mut raw) }, 0);
    assert_eq!(unsafe { raw.raw }[10..13], [0xff, 0xff, 127]);
    assert_eq!(unsafe { gid::query_gid(context, 1, attr.gid_tbl_len, &mut raw) }, -1);
    let mut entries = [ibv_gid_entry::zeroed(); 8];
    let size = size_of::<ibv_gid_entry>();
    let found = unsafe { gid::query_gid_table(context, entries.as_mut_ptr(), 8, 0, size) };
    assert_eq!(found, attr.gid_tbl_len as isize);
    assert_eq!(entries[0].gid_type, IBV_GID_TYPE_ROCE_V2);
    let mut kind = 9;
    assert_eq!(unsafe { gid::query_gid_type(context, 1, 0, &mut kind) }, 0);
    assert_eq!(kind, 1);
    assert_eq!(gid::get_pkey_index(context, 1, 0xffff), 0);
    assert_eq!(gid::get_pkey_index(context, 1, 0x1234), -1);
    assert_eq!(context::close_device(context), 0);
    assert_eq!(context::close_device(context), libc::EINVAL);
}

#[test]
fn limits_fit_the_struct_of_any_release() {
    let context = open();
    let ask = table(context).query_device_ex.unwrap();
    let mut attr = ibv_device_attr_ex::zeroed();
    let all = size_of::<ibv_device_attr_ex>();
    assert_eq!(unsafe { ask(context, null(), &mut attr, all) }, 0);
    assert!(attr.max_dm_size > 0 && attr.completion_timestamp_mask != 0);
    assert_eq!((attr.orig_attr.vendor_id, attr.orig_attr.phys_port_cnt), (0xff_ffff, 1));
    let groups = attr.orig_attr;
    assert_eq!((groups.max_mcast_grp, groups.max_mcast_qp_attach), (1024, 1024));
    assert_eq!(groups.max_total_mcast_qp_attach, 1024 * 1024);
    let mut room = [0xaa_u8; 1024];
    assert_eq!(unsafe { ask(context, null(), room.as_mut_ptr().cast(), 1024) }, 0);
    assert_eq!(room[all..], vec![0; 1024 - all], "what the library does not know is zero");
    let input = ibv_query_device_ex_input { comp_mask: 1 };
    assert_eq!(unsafe { ask(context, &input, &mut attr, all) }, libc::EINVAL);
    let mut values = ibv_values_ex::zeroed();
    values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK | 1 << 9;
    assert_eq!(unsafe { table(context).query_rt_values.unwrap()(context, &mut values) }, 0);
    assert_eq!(values.comp_mask, IBV_VALUES_MASK_RAW_CLOCK);
    context::close_device(context);
}

#[test]
fn memory_is_checked_as_if_it_were_pinned() {
    let context = open();
    let domain = outcome(pd::alloc_pd(context)).unwrap();
    let mut bytes = vec![0u8; 10_000];
    let addr: *mut c_void = bytes.as_mut_ptr().cast();
    let region = outcome(mr::reg_mr(domain, addr, bytes.len(), ALL)).unwrap();
    let c = unsafe { *region };
    assert_eq!((c.addr, c.length, c.pd), (addr, 10_000, domain));
    assert_eq!(c.lkey, c.rkey);
    assert_eq!(pd::dealloc_pd(domain), libc::EBUSY);

    let refused = |addr: *mut c_void, len, access: u32| {
        outcome(mr::reg_mr(domain, addr, len, access as i32)).unwrap_err()
    };
    assert_eq!(refused(null_mut(), 4096, 0), libc::EFAULT);
    assert_eq!(refused(addr, 0, 0), libc::EINVAL);
    assert_eq!(refused(addr, usize::MAX, 0), libc::EINVAL);
    assert_eq!(refused(addr, 1 << 46, 0), libc::EFAULT);
    assert_eq!(refused(addr, 16, IBV_ACCESS_REMOTE_WRITE), libc::EINVAL);
    assert_eq!(refused(addr, 16, 1 << 15), libc::EINVAL);
    let constant = b"cannot be written".as_ptr().cast_mut().cast();
    assert_eq!(refused(constant, 8, IBV_ACCESS_LOCAL_WRITE), libc::EFAULT);
    let readable = outcome(mr::reg_mr(domain, constant, 8, IBV_ACCESS_REMOTE_READ as i32));
    assert_eq!(mr::dereg_mr(readable.unwrap()), 0);

    let relaxed = IBV_ACCESS_RELAXED_ORDERING | IBV_ACCESS_LOCAL_WRITE;
    let far = outcome(mr::reg_mr_iova2(domain, addr, 100, 0x1234, relaxed)).unwrap();
    assert_eq!(mr::dereg_mr(far), 0);
    let everything = mr::reg_mr(domain, null_mut(), usize::MAX, ALL | IBV_ACCESS_ON_DEMAND as i32);
    assert_eq!(mr::dereg_mr(outcome(everything).unwrap()), 0);
    let nothing = outcome(mr::alloc_null_mr(domain)).unwrap();
    assert_eq!(mr::dereg_mr(nothing), 0);

    assert_eq!(mr::dereg_mr(region), 0);
    assert_eq!(mr::dereg_mr(region), libc::EINVAL, "freed");
    assert_eq!(mr::dereg_mr((&raw mut bytes).cast()), libc::EINVAL, "never a region");
    assert_eq!(outcome(mr::reg_mr(null_mut(), addr, 8, 0)), Err(libc::EINVAL));
    assert_eq!(pd::dealloc_pd(domain), 0);
    assert_eq!(pd::dealloc_pd(domain), libc::EINVAL);
    assert_eq!(outcome(mr::reg_mr(domain, addr, 8, 0)), Err(libc::EINVAL));
    context::close_device(context);
}

#[test]
fn a_region_changes_or_stays_as_it_was() {
    let context = open();
    let (one, two) = (pd::alloc_pd(context), pd::alloc_pd(context));
    let mut bytes = vec![0u8; 8192];
    let addr: *mut c_void = bytes.as_mut_ptr().cast();
    let region = outcome(mr::reg_mr(one, addr, 4096, 0)).unwrap();
    let change = |flags: u32, pd, addr, len, access: i32| {
        mr::rereg_mr(region, flags as i32, pd, addr, len, access)
    };
    let every = IBV_REREG_MR_FLAGS_SUPPORTED;
    let input = IBV_REREG_MR_ERR_INPUT;
    assert_eq!(change(0, one, addr, 1, 0), input);
    assert_eq!(change(every, two, null_mut(), 4096, ALL), input);
    assert_eq!(change(every, null_mut(), addr, 4096, ALL), input);
    assert_eq!(change(every, two, addr, 4096, IBV_ACCESS_REMOTE_WRITE as i32), input);
    assert_eq!(unsafe { ((*region).pd, (*region).length) }, (one, 4096));
    assert_eq!(change(every, two, addr, 8192, ALL), 0);
    assert_eq!(unsafe { ((*region).pd, (*region).length) }, (two, 8192));
    assert_eq!(pd::dealloc_pd(one), 0);
    assert_eq!(pd::dealloc_pd(two), libc::EBUSY);
    assert_eq!(mr::dereg_mr(region), 0);
    assert_eq!(pd::dealloc_pd(two), 0);
    context::close_device(context);
}

#[test]
fn device_memory_is_the_cards_own() {
    let context = open();
    let table = table(context);
    let mut attr = ibv_alloc_dm_attr { length: 1000, log_align_req: 8, comp_mask: 0 };
    let memory = outcome(unsafe { table.alloc_dm.unwrap()(context, &mut attr) }).unwrap();
    let (to, from) =
        unsafe { ((*memory).memcpy_to_dm.unwrap(), (*memory).memcpy_from_dm.unwrap()) };
    let mut copy = [0u8; 8];
    unsafe {
        assert_eq!(to(memory, 992, b"hello...".as_ptr().cast(), 8), 0);
        assert_eq!(to(memory, 996, b"hello...".as_ptr().cast(), 8), libc::EINVAL, "too long");
        assert_eq!(to(memory, 2, b"hello...".as_ptr().cast(), 8), libc::EINVAL, "not aligned");
        assert_eq!(to(memory, 4, b"hello...".as_ptr().cast(), 5), libc::EINVAL, "not whole words");
        assert_eq!(from(copy.as_mut_ptr().cast(), memory, 992, 8), 0);
    }
    assert_eq!(&copy, b"hello...");
    let domain = pd::alloc_pd(context);
    let based = IBV_ACCESS_ZERO_BASED;
    assert_eq!(outcome(mr::reg_dm_mr(domain, memory, 0, 1000, 0)), Err(libc::EINVAL));
    assert_eq!(outcome(mr::reg_dm_mr(domain, memory, 1, 1000, based)), Err(libc::EINVAL));
    let region = outcome(mr::reg_dm_mr(domain, memory, 0, 1000, based)).unwrap();
    let free = table.free_dm.unwrap();
    assert_eq!(unsafe { free(memory) }, libc::EBUSY);
    assert_eq!(mr::dereg_mr(region), 0);
    assert_eq!(unsafe { free(memory) }, 0);
    assert_eq!(unsafe { free(memory) }, libc::EINVAL);
    attr.length = 1 << 40;
    let too_much = unsafe { table.alloc_dm.unwrap()(context, &mut attr) };
    assert_eq!(outcome(too_much), Err(libc::ENOMEM));
    pd::dealloc_pd(domain);
    context::close_device(context);
}

#[test]
fn memory_of_a_descriptor_is_mapped() {
    let context = open();
    let domain = pd::alloc_pd(context);
    let fd = unsafe { libc::memfd_create(c"remora-test".as_ptr(), libc::MFD_CLOEXEC) };
    assert_eq!(unsafe { libc::ftruncate(fd, 16384) }, 0);
    let region = outcome(mr::reg_dmabuf_mr(domain, 5000, 100, 7, fd, ALL)).unwrap();
    assert_eq!(mr::dereg_mr(region), 0);
    let beyond = mr::reg_dmabuf_mr(domain, 16384, 100, 0, fd, ALL);
    assert_eq!(outcome(beyond), Err(libc::EFAULT));
    assert_eq!(outcome(mr::reg_dmabuf_mr(domain, 0, 100, 0, -1, ALL)), Err(libc::EBADF));
    unsafe { libc::close(fd) };
    pd::dealloc_pd(domain);
    context::close_device(context);
}

#[test]
fn parent_domains_stand_for_others() {
    let context = open();
    let table = table(context);
    let domain = pd::alloc_pd(context);
    let mut none = ibv_td_init_attr { comp_mask: 0 };
    let threads = outcome(unsafe { table.alloc_td.unwrap()(context, &mut none) }).unwrap();
    let mut attr = ibv_parent_domain_init_attr::zeroed();
    let make = table.alloc_parent_domain.unwrap();
    assert_eq!(outcome(unsafe { make(context, &mut attr) }), Err(libc::EINVAL));
    (attr.pd, attr.td) = (domain, threads);
    attr.comp_mask = 1 << 9;
    assert_eq!(outcome(unsafe { make(context, &mut attr) }), Err(libc::EINVAL), "unknown");
    attr.comp_mask = newer::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    let parent = outcome(unsafe { make(context, &mut attr) }).unwrap();
    let mut byte = 0u64;
    let region = outcome(mr::reg_mr(parent, (&raw mut byte).cast(), 8, ALL)).unwrap();
    assert_eq!(pd::dealloc_pd(parent), libc::EBUSY);
    assert_eq!(mr::dereg_mr(region), 0);
    assert_eq!(pd::dealloc_pd(domain), libc::EBUSY);
    assert_eq!(unsafe { table.dealloc_td.unwrap()(threads) }, libc::EBUSY);
    assert_eq!(pd::dealloc_pd(parent), 0);
    assert_eq!(unsafe { table.dealloc_td.unwrap()(threads) }, 0);
    assert_eq!(pd::dealloc_pd(domain), 0);
    context::close_device(context);
}

#[test]
fn address_vectors_by_gid_and_by_lid() {
    let context = open();
    let domain = pd::alloc_pd(context);
    let mut attr = ibv_ah_attr::zeroed();
    let made = |attr: &mut ibv_ah_attr| outcome(unsafe { ah::create_ah(domain, attr) });
    assert_eq!(made(&mut attr), Err(libc::EINVAL), "no port");
    attr.port_num = 1;
    assert_eq!(made(&mut attr), Err(libc::EINVAL), "no LID");
    attr.dlid = 2;
    let by_lid = made(&mut attr).unwrap();
    assert_eq!(ah::find(by_lid).unwrap().path.dst.to_string(), "127.0.0.2");
    attr.is_global = 1;
    assert_eq!(made(&mut attr), Err(libc::EINVAL), "no GID");
    attr.grh.dgid = ibv_gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3] };
    attr.grh.sgid_index = 200;
    assert_eq!(made(&mut attr), Err(libc::EINVAL), "no such source");
    attr.grh.sgid_index = 0;
    let by_gid = made(&mut attr).unwrap();
    assert_eq!(ah::find(by_gid).unwrap().path.dst.to_string(), "10.1.2.3");
    assert_eq!(ah::destroy_ah(by_lid), 0);
    assert_eq!(ah::destroy_ah(by_lid), libc::EINVAL);
    assert_eq!(pd::dealloc_pd(domain), libc::EBUSY);
    assert_eq!(ah::destroy_ah(by_gid), 0);
    assert_eq!(pd::dealloc_pd(domain), 0);
    context::close_device(context);
}

#[test]
fn a_child_starts_anew() {
    let context = open();
    let domain = pd::alloc_pd(context);
    // SAFETY: `malloc` after `fork` in a program with threads is not allowed by POSIX, but safe
    // with this C library.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let foreign = pd::dealloc_pd(domain) == libc::EINVAL
            && context::close_device(context) == libc::EINVAL;
        let own = open();
        let works = pd::dealloc_pd(pd::alloc_pd(own)) == 0;
        unsafe { libc::_exit(if foreign && works { 0 } else { 1 }) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(pd::dealloc_pd(domain), 0);
    context::close_device(context);
}
