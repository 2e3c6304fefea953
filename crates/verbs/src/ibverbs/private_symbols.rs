//! The symbols of the private version nodes: see [`super::private`].

use super::*;
use crate::export::symbol;

/// Exports each name in each of the nodes: `[34 57] private::refused: [ibv_cmd_alloc_pd …];`
macro_rules! private {
    (@all [$($node:tt)*] $function:path, $names:tt) => {
        $(private!(@node $node $function, $names);)*
    };
    (@node $node:tt $function:path, [$($name:ident)*]) => {
        $(symbol!(concat!(stringify!($name), private!(@version $node)), $function);)*
    };
    // New drivers are linked to the oldest version, which most releases have.
    (@version 34) => { "@@IBVERBS_PRIVATE_34" };
    (@version $node:tt) => { concat!("@IBVERBS_PRIVATE_", $node) };
    ($($nodes:tt $function:path: $names:tt;)*) => { $(private!(@all $nodes $function, $names);)* };
}

private! {
    [34 57 59 64 65] private::none: [__ioctl_final_num_attrs];
    [34 57 59 64 65] private::ignored: [
        __verbs_log verbs_init_cq verbs_set_ops verbs_uninit_context
    ];
    [34 57 59 64 65] private::no_object: [_verbs_init_and_alloc_context verbs_open_device];
    [34 57 59 64 65] private::refused: [
        execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_mw ibv_cmd_alloc_pd
        ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_counters
        ibv_cmd_create_cq ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2 ibv_cmd_create_flow
        ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex ibv_cmd_create_qp_ex2
        ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex ibv_cmd_create_wq
        ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah
        ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action
        ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq ibv_cmd_destroy_wq
        ibv_cmd_detach_mcast ibv_cmd_free_dm ibv_cmd_get_context ibv_cmd_modify_cq
        ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq
        ibv_cmd_modify_wq ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv
        ibv_cmd_post_send ibv_cmd_post_srq_recv ibv_cmd_query_context ibv_cmd_query_device_any
        ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_counters
        ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr ibv_cmd_req_notify_cq
        ibv_cmd_rereg_mr ibv_cmd_resize_cq
    ];
    [34 57 59 64 65] gid::query_gid_type: [ibv_query_gid_type];
    [34 57 59 64 65] sysfs_calls::read_ibdev_sysfs_file: [ibv_read_ibdev_sysfs_file];
    [34 57 59 64 65] strings::wr_opcode_str: [ibv_wr_opcode_str];
    [59 64 65] private::refused: [
        ibv_cmd_alloc_dmah ibv_cmd_export_dmabuf_fd ibv_cmd_free_dmah ibv_cmd_query_port_speed
        ibv_cmd_reg_mr_ex
    ];
    [64 65] private::refused: [
        ibv_cmd_create_comp_cntr ibv_cmd_destroy_comp_cntr ibv_cmd_inc_comp_cntr
        ibv_cmd_inc_err_comp_cntr ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps
        ibv_cmd_read_comp_cntr ibv_cmd_read_err_comp_cntr ibv_cmd_set_comp_cntr
        ibv_cmd_set_err_comp_cntr ibv_dmabuf_heap_cc_shared_init ibv_dmabuf_heap_destroy
        ibv_dmabuf_heap_free
    ];
    [64 65] private::no_object: [ibv_dmabuf_heap_alloc];
    [34] private::refused: [ibv_cmd_query_device];
    [34] private::ignored: [verbs_register_driver_34];
    [57] private::ignored: [verbs_register_driver_57];
    [59] private::ignored: [verbs_register_driver_59];
    [64] private::ignored: [verbs_register_driver_64];
    [65] private::ignored: [verbs_register_driver_65];
}

/// A flag that drivers read, in each of the nodes: may objects be destroyed although the kernel
/// refuses?
macro_rules! flag {
    ($($name:literal)*) => {
        core::arch::global_asm!(
            ".pushsection .bss,\"aw\",@nobits",
            $(
                concat!(".globl \"", $name, "\""),
                concat!(".type \"", $name, "\", @object"),
                concat!("\"", $name, "\":"),
                ".zero 1",
                concat!(".size \"", $name, "\", 1"),
            )*
            ".popsection",
        );
    };
}

flag! {
    "verbs_allow_disassociate_destroy@@IBVERBS_PRIVATE_34"
    "verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_57"
    "verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_59"
    "verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_64"
    "verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_65"
}
