//! The addresses that a listener covers.

use core::net::IpAddr;

/// The addresses that a listener, or an id bound to a port, covers. IPv6 addresses that stand for
/// IPv4 ones count as IPv4.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum AddressScope {
    /// All addresses.
    All,
    /// All of IPv4, or of IPv6.
    Family {
        /// IPv6's?
        v6: bool,
    },
    /// This address only.
    One(IpAddr),
}

impl AddressScope {
    /// The first in order.
    pub(super) const FIRST: AddressScope = AddressScope::All;

    /// The scopes that contain an address, the narrowest first.
    pub fn containing(ip: IpAddr) -> [AddressScope; 3] {
        let ip = ip.to_canonical();
        [AddressScope::One(ip), AddressScope::Family { v6: ip.is_ipv6() }, AddressScope::All]
    }

    /// Do both contain some address?
    pub fn overlaps(self, other: AddressScope) -> bool {
        use AddressScope::{All, Family, One};
        match (self, other) {
            (All, _) | (_, All) => true,
            (Family { v6 }, Family { v6: other }) => v6 == other,
            (Family { v6 }, One(ip)) | (One(ip), Family { v6 }) => ip.is_ipv6() == v6,
            (One(ip), One(other)) => ip == other,
        }
    }

    /// Is it more than one address?
    pub fn is_wildcard(self) -> bool {
        !matches!(self, AddressScope::One(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_overlap_if_they_share_an_address() {
        let one = |ip: &str| AddressScope::One(ip.parse().unwrap());
        let (v4, v6) = (AddressScope::Family { v6: false }, AddressScope::Family { v6: true });
        let all = AddressScope::All;
        for (a, b, overlap) in [
            (all, v4, true),
            (all, one("::1"), true),
            (v4, v6, false),
            (v4, v4, true),
            (v4, one("10.0.0.1"), true),
            (v6, one("10.0.0.1"), false),
            (one("10.0.0.1"), one("10.0.0.2"), false),
            (one("10.0.0.1"), one("10.0.0.1"), true),
        ] {
            assert_eq!((a.overlaps(b), b.overlaps(a)), (overlap, overlap), "{a:?} {b:?}");
        }
    }

    #[test]
    fn an_address_is_in_three_scopes() {
        let mapped = "::ffff:10.0.0.1".parse().unwrap();
        let v4 = AddressScope::Family { v6: false };
        let ip = AddressScope::One("10.0.0.1".parse().unwrap());
        assert_eq!(AddressScope::containing(mapped), [ip, v4, AddressScope::All]);
    }
}
