//! Address handles, and the path that an address vector stands for.

use core::ffi::c_int;
use std::net::IpAddr;
use std::ptr;

use remora::nic::Path;

use super::objects::Pd;
use super::pd;
use super::port;
use super::{EINVAL, ENOMEM, Result, context, number, or_minus_one, or_null};
use crate::abi::*;
use crate::card::{GID_TABLE_LEN, ListedCard, address_of_gid};
use crate::handles::{self, Object, Slot};

/// An address handle.
#[derive(Debug)]
pub struct Ah {
    /// Its protection domain.
    pub pd: &'static Slot<Pd>,
    /// The card's number for it.
    pub number: u32,
    /// The path to the destination.
    pub path: Path,
}

impl Object for Ah {
    type C = ibv_ah;
    const KIND: handles::Kind = handles::Kind::Ah;
}

/// Looks up an address handle.
pub fn find(ah: *const ibv_ah) -> Result<&'static Slot<Ah>> {
    Ok(handles::get::<Ah>(ah)?)
}

/// The hop limit used where an address vector gives 0 or 1: programs written for InfiniBand do so,
/// but RoCE v2 is routed as IP.
const HOPS: u8 = 64;

/// The path that an address vector stands for. `entropy` is the queue pair's number, from which the
/// source port follows.
///
/// With a GRH, the GID is an IP address. Without one, the LID is the low half of a loopback
/// address: see [`ListedCard::lid`].
///
/// # Errors
/// `EINVAL`: the port, GID index or address does not exist, the address is of another family than
/// the card's, or the card has no LIDs.
pub fn path_of(card: &ListedCard, attr: &ibv_ah_attr, entropy: u32) -> Result<Path> {
    port::check(u32::from(attr.port_num))?;
    let service_level = attr.sl & 0xF;
    if attr.is_global == 0 {
        let address = card.address_of_lid(attr.dlid).ok_or(EINVAL)?;
        return Ok(Path { service_level, ..Path::new(address, entropy) });
    }
    if u32::from(attr.grh.sgid_index) >= GID_TABLE_LEN {
        return Err(EINVAL);
    }
    // SAFETY: both members of the union are 16 bytes of any value.
    let address = address_of_gid(unsafe { attr.grh.dgid.raw });
    if address.is_unspecified() || address.is_ipv4() != card.address.is_ipv4() {
        return Err(EINVAL);
    }
    let mut path = Path { service_level, ..Path::new(address, entropy) };
    // The low two bits are for congestion notification.
    path.traffic_class = attr.grh.traffic_class & !3;
    path.hop_limit = if attr.grh.hop_limit > 1 { attr.grh.hop_limit } else { HOPS };
    Ok(path)
}

/// The address vector of a path, as `ibv_query_qp` returns it.
pub fn attr_of(path: &Path) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr::zeroed();
    attr.is_global = 1;
    attr.port_num = 1;
    attr.sl = path.service_level;
    attr.grh.dgid = ibv_gid { raw: crate::card::gid_of(path.dst) };
    attr.grh.hop_limit = path.hop_limit;
    attr.grh.traffic_class = path.traffic_class;
    attr
}

/// `ibv_create_ah`.
///
/// # Safety
/// `attr` is null or points to the struct.
pub unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: by promise of the caller.
    or_null(unsafe { attr.as_ref() }.ok_or(EINVAL).and_then(|attr| create(pd, attr)))
}

/// As [`create_ah`].
pub fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah> {
    let pd = pd::find(pd)?;
    let card = pd.context.card;
    let path = path_of(card, attr, 0)?;
    let number = card.lock().commands().create_ah(pd.pd, path)?;
    let c = ibv_ah { context: context::inner(pd.context), pd: pd.c(), handle: number };
    let Some(slot) = handles::create(c, Ah { pd, number, path }) else {
        card.lock().commands().destroy_ah(number).ok();
        return Err(ENOMEM);
    };
    pd.enter();
    pd.context.enter();
    Ok(slot.c())
}

/// `ibv_destroy_ah`.
pub extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    number((|| {
        let Ah { pd, number, .. } = handles::destroy::<Ah>(ah)?;
        {
            let mut card = pd.context.card.lock();
            // Datagrams that are posted already leave first.
            card.kick();
            card.commands().destroy_ah(number)?;
        }
        pd.leave();
        pd.context.leave();
        Ok(())
    })())
}

/// `ibv_init_ah_from_wc`: -1 on failure.
///
/// # Safety
/// The pointers are null or point to their structs.
pub unsafe extern "C" fn init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    or_minus_one((|| {
        let card = context::find(context)?.card;
        port::check(u32::from(port))?;
        // SAFETY: by promise of the caller. A GRH lies in a receive buffer, at any address.
        let (wc, attr) = unsafe { (wc.as_ref().ok_or(EINVAL)?, attr.as_mut().ok_or(EINVAL)?) };
        *attr = back_to_sender(card, wc, grh)?;
        Ok(0)
    })())
}

/// The address vector that leads back to the sender of a datagram.
fn back_to_sender(card: &ListedCard, wc: &ibv_wc, grh: *const ibv_grh) -> Result<ibv_ah_attr> {
    let mut attr = ibv_ah_attr::zeroed();
    attr.port_num = 1;
    attr.dlid = wc.slid;
    attr.sl = wc.sl;
    attr.src_path_bits = wc.dlid_path_bits;
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Ok(attr);
    }
    if grh.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: it is not null, so 40 bytes can be read, by promise of the caller.
    let bytes: [u8; 40] = unsafe { ptr::read_unaligned(grh.cast()) };
    let (sender, traffic_class) = sender_of(&bytes).ok_or(EINVAL)?;
    if sender.is_ipv4() != card.address.is_ipv4() {
        return Err(EINVAL);
    }
    attr.is_global = 1;
    attr.grh.dgid = ibv_gid { raw: crate::card::gid_of(sender) };
    attr.grh.traffic_class = traffic_class;
    attr.grh.hop_limit = u8::MAX;
    Ok(attr)
}

/// The sender of a datagram, and its traffic class: from an IPv4 header in the second half of the
/// 40 bytes, or an IPv6 header in all of them. Bytes that could be both are taken for IPv4 if the
/// checksum is right.
fn sender_of(grh: &[u8; 40]) -> Option<(IpAddr, u8)> {
    let (_, v4) = grh.split_last_chunk::<20>()?;
    if v4[0] == 0x45 && (checksum(v4) == 0 || grh[0] >> 4 != 6) {
        let source = v4[12..16].first_chunk::<4>()?;
        return Some((IpAddr::from(*source), v4[1]));
    }
    if grh[0] >> 4 != 6 {
        return None;
    }
    let source = grh[8..24].first_chunk::<16>()?;
    Some((address_of_gid(*source), grh[0] << 4 | grh[1] >> 4))
}

/// The sum that is zero over a whole IPv4 header (RFC 1071).
fn checksum(header: &[u8; 20]) -> u16 {
    let words = header.chunks_exact(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// `ibv_create_ah_from_wc`.
///
/// # Safety
/// The pointers are null or point to their structs.
pub unsafe extern "C" fn create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    or_null((|| {
        let card = pd::find(pd)?.context.card;
        port::check(u32::from(port))?;
        // SAFETY: by promise of the caller.
        let attr = back_to_sender(card, unsafe { wc.as_ref() }.ok_or(EINVAL)?, grh)?;
        create(pd, &attr)
    })())
}

/// `ibv_resolve_eth_l2_from_gid`: this card sends through IP sockets, so no MAC address is needed,
/// and there is no VLAN.
///
/// # Safety
/// `mac` has room for 6 bytes, `vid` for a number; either may be null.
pub unsafe extern "C" fn resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    mac: *mut [u8; 6],
    vid: *mut u16,
) -> c_int {
    or_minus_one((|| {
        let card = context::find(context)?.card;
        // SAFETY: by promise of the caller.
        let (attr, mac, vid) =
            unsafe { (attr.as_ref().ok_or(EINVAL)?, mac.as_mut(), vid.as_mut()) };
        path_of(card, attr, 0)?;
        if let Some(mac) = mac {
            *mac = [0; 6];
        }
        if let Some(vid) = vid {
            *vid = 0xffff;
        }
        Ok(0)
    })())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_is_found_in_either_header() {
        let mut grh = [0; 40];
        let header =
            [0x45, 8, 0, 60, 0, 0, 0x40, 0, 64, 17, 0x3c, 0xa7, 127, 0, 0, 1, 127, 0, 0, 2];
        grh[20..].copy_from_slice(&header);
        assert_eq!(sender_of(&grh), Some((IpAddr::from([127, 0, 0, 1]), 8)));
        let mut grh = [0; 40];
        grh[..2].copy_from_slice(&[0x61, 0x20]);
        grh[23] = 1;
        let sender = IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1u16]);
        assert_eq!(sender_of(&grh), Some((sender, 0x12)));
        assert_eq!(sender_of(&[0; 40]), None);
    }
}
