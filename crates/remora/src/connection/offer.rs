//! The offer of kernels (StRoM's op-codes), in the private data of connection management.

use remora_nic::cm::message::{Rep, Req};

/// Both sides put this at the end of their private data to offer kernels. The standard's messages
/// have no other place for it.
const OFFER: &[u8; 4] = b"StRM";
/// Bytes of private data in a request, and in a reply.
pub(super) const REQUEST_DATA: usize = Req::USER_DATA;
pub(super) const REPLY_DATA: usize = Rep::PRIVATE_DATA;

/// Private data, with the offer at the end of its `room` bytes if kernels are offered. (Data that
/// leaves no room for the offer becomes too long, and connection management refuses it.)
pub(super) fn with_offer(data: &[u8], room: usize, offers: bool) -> Vec<u8> {
    let mut all = data.to_vec();
    if offers {
        all.resize((room - OFFER.len()).max(data.len()), 0);
        all.extend_from_slice(OFFER);
    }
    all
}

/// Takes the offer out of private data; returns whether there was one.
pub(super) fn take_offer(data: &mut [u8], room: usize) -> bool {
    let end = data.get_mut(room - OFFER.len()..room);
    end.is_some_and(|end| {
        let offers = end == OFFER;
        if offers {
            end.fill(0);
        }
        offers
    })
}
