//! The exported symbols of `librdmacm`: name, version and function of each.

use super::{
    address, address_list, addrinfo, connect, endpoint, events, lookup, multicast, options,
    queue_pair,
};
use crate::export::export;

export! {
    "rdma_accept@@RDMACM_1.0" = connect::rdma_accept;
    "rdma_ack_cm_event@@RDMACM_1.0" = events::rdma_ack_cm_event;
    "rdma_bind_addr@@RDMACM_1.0" = address::rdma_bind_addr;
    "rdma_connect@@RDMACM_1.0" = connect::rdma_connect;
    "rdma_create_ep@@RDMACM_1.0" = endpoint::rdma_create_ep;
    "rdma_create_event_channel@@RDMACM_1.0" = connect::rdma_create_event_channel;
    "rdma_create_id@@RDMACM_1.0" = connect::rdma_create_id;
    "rdma_create_qp@@RDMACM_1.0" = queue_pair::rdma_create_qp;
    "rdma_create_qp_ex@@RDMACM_1.0" = queue_pair::rdma_create_qp_ex;
    "rdma_create_srq@@RDMACM_1.0" = queue_pair::rdma_create_srq;
    "rdma_create_srq_ex@@RDMACM_1.0" = queue_pair::rdma_create_srq_ex;
    "rdma_destroy_ep@@RDMACM_1.0" = endpoint::rdma_destroy_ep;
    "rdma_destroy_event_channel@@RDMACM_1.0" = connect::rdma_destroy_event_channel;
    "rdma_destroy_id@@RDMACM_1.0" = connect::rdma_destroy_id;
    "rdma_destroy_qp@@RDMACM_1.0" = queue_pair::rdma_destroy_qp;
    "rdma_destroy_srq@@RDMACM_1.0" = queue_pair::rdma_destroy_srq;
    "rdma_disconnect@@RDMACM_1.0" = connect::rdma_disconnect;
    "rdma_establish@@RDMACM_1.2" = connect::rdma_establish;
    "rdma_event_str@@RDMACM_1.0" = events::rdma_event_str;
    "rdma_free_devices@@RDMACM_1.0" = connect::rdma_free_devices;
    "rdma_freeaddrinfo@@RDMACM_1.0" = address_list::rdma_freeaddrinfo;
    "rdma_get_cm_event@@RDMACM_1.0" = events::rdma_get_cm_event;
    "rdma_get_devices@@RDMACM_1.0" = connect::rdma_get_devices;
    "rdma_get_dst_port@@RDMACM_1.0" = address::rdma_get_dst_port;
    "rdma_get_remote_ece@@RDMACM_1.3" = options::rdma_get_remote_ece;
    "rdma_get_request@@RDMACM_1.0" = endpoint::rdma_get_request;
    "rdma_get_src_port@@RDMACM_1.0" = address::rdma_get_src_port;
    "rdma_getaddrinfo@@RDMACM_1.0" = addrinfo::rdma_getaddrinfo;
    "rdma_init_qp_attr@@RDMACM_1.2" = queue_pair::rdma_init_qp_attr;
    "rdma_join_multicast@@RDMACM_1.0" = multicast::rdma_join_multicast;
    "rdma_join_multicast_ex@@RDMACM_1.1" = multicast::rdma_join_multicast_ex;
    "rdma_leave_multicast@@RDMACM_1.0" = multicast::rdma_leave_multicast;
    "rdma_listen@@RDMACM_1.0" = connect::rdma_listen;
    "rdma_migrate_id@@RDMACM_1.0" = connect::rdma_migrate_id;
    "rdma_notify@@RDMACM_1.0" = connect::rdma_notify;
    "rdma_query_addrinfo@@RDMACM_1.4" = lookup::rdma_query_addrinfo;
    "rdma_reject@@RDMACM_1.0" = connect::rdma_reject;
    "rdma_reject_ece@@RDMACM_1.3" = connect::rdma_reject_ece;
    "rdma_resolve_addr@@RDMACM_1.0" = address::rdma_resolve_addr;
    "rdma_resolve_addrinfo@@RDMACM_1.4" = lookup::rdma_resolve_addrinfo;
    "rdma_resolve_route@@RDMACM_1.0" = address::rdma_resolve_route;
    "rdma_set_local_ece@@RDMACM_1.3" = options::rdma_set_local_ece;
    "rdma_set_option@@RDMACM_1.0" = options::rdma_set_option;
    "rdma_write_cm_event@@RDMACM_1.4" = events::rdma_write_cm_event;
}
