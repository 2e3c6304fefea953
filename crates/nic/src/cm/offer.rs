//! What two cards agree on beyond the standard: a request offers it, the reply confirms it.
//!
//! Both are in the GUID that a card has in REQ and REP, which is the card's own to choose. So no
//! private data is used, and programs that connect by the RDMA connection manager need not know.
//! A GUID with an offer has a mark of three bytes, and one byte that says what is offered. A peer
//! that does not know the mark sees a GUID like any other, and confirms nothing. A foreign GUID is
//! mistaken for an offer with a chance of 2⁻²⁴ at most.

use crate::wire::Dialect;

/// The mark, in the second to fourth byte.
const MARK: u64 = 0x0052_4D52 << 32;
const MARK_BITS: u64 = 0x00FF_FFFF << 32;
/// The offer is in the fifth byte.
const OFFER_SHIFT: u32 = 24;
const OFFER_BITS: u64 = 0xFF << OFFER_SHIFT;

/// The GUID of a card that can offer something, in a message that offers or confirms `dialect`.
pub(super) fn guid_with(guid: u64, dialect: Dialect) -> u64 {
    guid & !(MARK_BITS | OFFER_BITS) | MARK | u64::from(dialect.bits()) << OFFER_SHIFT
}

/// What a GUID offers or confirms: nothing if it has no mark.
pub(super) fn offered(guid: u64) -> Dialect {
    match guid & MARK_BITS {
        MARK => Dialect::from_bits_truncate((guid >> OFFER_SHIFT) as u8),
        _ => Dialect::STANDARD,
    }
}

/// Does a GUID have the mark, so that its card is one of this kind, whatever it offers?
pub(super) fn is_marked(guid: u64) -> bool {
    guid & MARK_BITS == MARK
}

/// The GUID by which a peer's card is known: the same in all its messages, whatever they offer.
pub(super) fn identity(guid: u64) -> u64 {
    if is_marked(guid) { guid & !OFFER_BITS } else { guid }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_offer_is_read_and_the_card_stays_the_same(guid: u64, bits in 0u8..4) {
            let dialect = Dialect::from_bits_truncate(bits);
            let with = guid_with(guid, dialect);
            prop_assert_eq!(offered(with), dialect);
            prop_assert_eq!(identity(with), identity(guid_with(guid, Dialect::STANDARD)));
            // The first byte and the last three tell cards apart.
            prop_assert_eq!(with & 0xFF00_0000_00FF_FFFF, guid & 0xFF00_0000_00FF_FFFF);
        }

        #[test]
        fn a_guid_without_the_mark_offers_nothing(guid: u64) {
            prop_assume!(guid & MARK_BITS != MARK);
            prop_assert_eq!((offered(guid), identity(guid)), (Dialect::STANDARD, guid));
        }
    }
}
