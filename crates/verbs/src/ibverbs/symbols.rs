//! The exported symbols: name, version and function of each.
//!
//! The list is that of the distribution's library and of later releases. Version 1.0, before 2006,
//! has other structs: only functions that do not touch those structs work for it.

use super::*;
use crate::export::export;

export! {
    "_ibv_query_gid_ex@@IBVERBS_1.11" = gid::query_gid_ex;
    "_ibv_query_gid_table@@IBVERBS_1.11" = gid::query_gid_table;
    "ibv_alloc_pd@@IBVERBS_1.1" = pd::alloc_pd;
    "ibv_attach_mcast@@IBVERBS_1.1" = mcast::attach_mcast;
    "ibv_close_device@@IBVERBS_1.1" = context::close_device;
    "ibv_copy_ah_attr_from_kern@@IBVERBS_1.1" = copy::ah_attr_from_kern;
    "ibv_copy_path_rec_from_kern@@IBVERBS_1.0" = copy::path_rec_from_kern;
    "ibv_copy_path_rec_to_kern@@IBVERBS_1.0" = copy::path_rec_to_kern;
    "ibv_copy_qp_attr_from_kern@@IBVERBS_1.0" = copy::qp_attr_from_kern;
    "ibv_create_ah@@IBVERBS_1.1" = ah::create_ah;
    "ibv_create_ah_from_wc@@IBVERBS_1.1" = ah::create_ah_from_wc;
    "ibv_dealloc_pd@@IBVERBS_1.1" = pd::dealloc_pd;
    "ibv_dereg_mr@@IBVERBS_1.1" = mr::dereg_mr;
    "ibv_destroy_ah@@IBVERBS_1.1" = ah::destroy_ah;
    "ibv_detach_mcast@@IBVERBS_1.1" = mcast::detach_mcast;
    "ibv_dofork_range@@IBVERBS_1.1" = fork::fork_range;
    "ibv_dontfork_range@@IBVERBS_1.1" = fork::fork_range;
    "ibv_event_type_str@@IBVERBS_1.1" = strings::event_type_str;
    "ibv_fork_init@@IBVERBS_1.1" = fork::fork_init;
    "ibv_free_device_list@@IBVERBS_1.1" = device::free_device_list;
    "ibv_get_device_guid@@IBVERBS_1.1" = device::get_device_guid;
    "ibv_get_device_index@@IBVERBS_1.9" = device::get_device_index;
    "ibv_get_device_list@@IBVERBS_1.1" = device::get_device_list;
    "ibv_get_device_name@@IBVERBS_1.1" = device::get_device_name;
    "ibv_get_pkey_index@@IBVERBS_1.5" = gid::get_pkey_index;
    "ibv_get_sysfs_path@@IBVERBS_1.0" = sysfs_calls::get_sysfs_path;
    "ibv_import_device@@IBVERBS_1.10" = import::import_device;
    "ibv_import_dm@@IBVERBS_1.13" = import::import_dm;
    "ibv_import_mr@@IBVERBS_1.10" = import::import_mr;
    "ibv_import_pd@@IBVERBS_1.10" = import::import_pd;
    "ibv_init_ah_from_wc@@IBVERBS_1.1" = ah::init_ah_from_wc;
    "ibv_is_fork_initialized@@IBVERBS_1.13" = fork::is_fork_initialized;
    "ibv_node_type_str@@IBVERBS_1.1" = strings::node_type_str;
    "ibv_open_device@@IBVERBS_1.1" = open::open_device;
    "ibv_port_state_str@@IBVERBS_1.1" = strings::port_state_str;
    "ibv_query_device@@IBVERBS_1.1" = device_attr::query_device;
    "ibv_query_gid@@IBVERBS_1.1" = gid::query_gid;
    "ibv_query_pkey@@IBVERBS_1.1" = gid::query_pkey;
    "ibv_query_port@@IBVERBS_1.1" = port::query_port;
    "ibv_rate_to_mbps@@IBVERBS_1.1" = strings::rate_to_mbps;
    "ibv_rate_to_mult@@IBVERBS_1.0" = strings::rate_to_mult;
    "ibv_read_sysfs_file@@IBVERBS_1.0" = sysfs_calls::read_sysfs_file;
    "ibv_reg_dmabuf_mr@@IBVERBS_1.12" = mr::reg_dmabuf_mr;
    "ibv_reg_mr@@IBVERBS_1.1" = mr::reg_mr;
    "ibv_reg_mr_iova2@@IBVERBS_1.8" = mr::reg_mr_iova2;
    "ibv_reg_mr_iova@@IBVERBS_1.7" = mr::reg_mr_iova;
    "ibv_register_driver@IBVERBS_1.1" = private::ignored;
    "ibv_rereg_mr@@IBVERBS_1.1" = mr::rereg_mr;
    "ibv_resolve_eth_l2_from_gid@@IBVERBS_1.1" = ah::resolve_eth_l2_from_gid;
    "ibv_unimport_dm@@IBVERBS_1.13" = import::unimport_dm;
    "ibv_unimport_mr@@IBVERBS_1.10" = import::unimport_mr;
    "ibv_unimport_pd@@IBVERBS_1.10" = import::unimport_pd;
    "ibv_wc_status_str@@IBVERBS_1.1" = strings::wc_status_str;
    "mbps_to_ibv_rate@@IBVERBS_1.1" = strings::mbps_to_rate;
    "mult_to_ibv_rate@@IBVERBS_1.0" = strings::mult_to_rate;
}

// Queues.
export! {
    "ibv_ack_async_event@@IBVERBS_1.1" = async_event::ack_async_event;
    "ibv_ack_cq_events@@IBVERBS_1.1" = channel::ack_cq_events;
    "ibv_create_comp_channel@@IBVERBS_1.0" = channel::create_comp_channel;
    "ibv_create_cq@@IBVERBS_1.1" = cq::create_cq;
    "ibv_create_qp@@IBVERBS_1.1" = qp::create_qp;
    "ibv_create_srq@@IBVERBS_1.1" = srq::create_srq;
    "ibv_destroy_comp_channel@@IBVERBS_1.0" = channel::destroy_comp_channel;
    "ibv_destroy_cq@@IBVERBS_1.1" = cq::destroy_cq;
    "ibv_destroy_qp@@IBVERBS_1.1" = qp::destroy_qp;
    "ibv_destroy_srq@@IBVERBS_1.1" = srq::destroy_srq;
    "ibv_get_async_event@@IBVERBS_1.1" = async_event::get_async_event;
    "ibv_get_cq_event@@IBVERBS_1.1" = channel::get_cq_event;
    "ibv_modify_qp@@IBVERBS_1.1" = qp::modify_qp;
    "ibv_modify_srq@@IBVERBS_1.1" = srq::modify_srq;
    "ibv_qp_to_qp_ex@@IBVERBS_1.6" = qp::qp_to_qp_ex;
    "ibv_query_ece@@IBVERBS_1.10" = qp::query_ece;
    "ibv_query_qp@@IBVERBS_1.1" = qp::query_qp;
    "ibv_query_qp_data_in_order@@IBVERBS_1.14" = qp::query_qp_data_in_order;
    "ibv_query_srq@@IBVERBS_1.1" = srq::query_srq;
    "ibv_resize_cq@@IBVERBS_1.1" = cq::resize_cq;
    "ibv_set_ece@@IBVERBS_1.10" = qp::set_ece;
}

// Of releases later than the distribution's.
export! {
    "ibv_alloc_dmah@@IBVERBS_1.15" = private::unsupported_object;
    "ibv_dealloc_dmah@@IBVERBS_1.15" = private::unsupported;
    "ibv_reg_mr_ex@@IBVERBS_1.15" = mr::reg_mr_ex;
    "ibv_dm_export_dmabuf_fd@@IBVERBS_1.16" = private::unsupported_descriptor;
    "ibv_query_port_speed@@IBVERBS_1.16" = port::query_port_speed;
    "ibv_alloc_buf@@IBVERBS_1.17" = buf::alloc_buf;
    "ibv_free_buf@@IBVERBS_1.17" = buf::free_buf;
    "ibv_reg_buf_mr@@IBVERBS_1.17" = mr::reg_buf_mr;
    "_ibv_query_comp_cntr_caps@@IBVERBS_1.18" = private::unsupported;
    "ibv_create_comp_cntr@@IBVERBS_1.18" = private::unsupported_object;
    "ibv_destroy_comp_cntr@@IBVERBS_1.18" = private::unsupported;
    "ibv_export_buf_dmabuf_fd@@IBVERBS_1.18" = buf::export_buf_dmabuf_fd;
    "ibv_inc_comp_cntr@@IBVERBS_1.18" = private::unsupported;
    "ibv_inc_err_comp_cntr@@IBVERBS_1.18" = private::unsupported;
    "ibv_qp_attach_comp_cntr@@IBVERBS_1.18" = private::unsupported;
    "ibv_read_comp_cntr@@IBVERBS_1.18" = private::unsupported;
    "ibv_read_err_comp_cntr@@IBVERBS_1.18" = private::unsupported;
    "ibv_set_comp_cntr@@IBVERBS_1.18" = private::unsupported;
    "ibv_set_err_comp_cntr@@IBVERBS_1.18" = private::unsupported;
}

// Of version 1.0.
export! {
    "ibv_ack_async_event@IBVERBS_1.0" = private::ignored;
    "ibv_ack_cq_events@IBVERBS_1.0" = private::ignored;
    "ibv_alloc_pd@IBVERBS_1.0" = private::no_object;
    "ibv_attach_mcast@IBVERBS_1.0" = private::refused;
    "ibv_close_device@IBVERBS_1.0" = private::refused;
    "ibv_create_ah@IBVERBS_1.0" = private::no_object;
    "ibv_create_cq@IBVERBS_1.0" = private::no_object;
    "ibv_create_qp@IBVERBS_1.0" = private::no_object;
    "ibv_create_srq@IBVERBS_1.0" = private::no_object;
    "ibv_dealloc_pd@IBVERBS_1.0" = private::refused;
    "ibv_dereg_mr@IBVERBS_1.0" = private::refused;
    "ibv_destroy_ah@IBVERBS_1.0" = private::refused;
    "ibv_destroy_cq@IBVERBS_1.0" = private::refused;
    "ibv_destroy_qp@IBVERBS_1.0" = private::refused;
    "ibv_destroy_srq@IBVERBS_1.0" = private::refused;
    "ibv_detach_mcast@IBVERBS_1.0" = private::refused;
    "ibv_free_device_list@IBVERBS_1.0" = private::ignored;
    "ibv_get_async_event@IBVERBS_1.0" = private::refused;
    "ibv_get_cq_event@IBVERBS_1.0" = private::refused;
    "ibv_get_device_guid@IBVERBS_1.0" = private::no_guid;
    "ibv_get_device_list@IBVERBS_1.0" = private::no_object;
    "ibv_get_device_name@IBVERBS_1.0" = private::no_object;
    "ibv_modify_qp@IBVERBS_1.0" = private::refused;
    "ibv_modify_srq@IBVERBS_1.0" = private::refused;
    "ibv_open_device@IBVERBS_1.0" = private::no_object;
    "ibv_query_device@IBVERBS_1.0" = private::refused;
    "ibv_query_gid@IBVERBS_1.0" = private::refused;
    "ibv_query_pkey@IBVERBS_1.0" = private::refused;
    "ibv_query_port@IBVERBS_1.0" = private::refused;
    "ibv_query_qp@IBVERBS_1.0" = private::refused;
    "ibv_query_srq@IBVERBS_1.0" = private::refused;
    "ibv_reg_mr@IBVERBS_1.0" = private::no_object;
    "ibv_resize_cq@IBVERBS_1.0" = private::refused;
}
