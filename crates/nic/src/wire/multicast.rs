//! Multicast groups: their addresses, and the queue pair number that stands for all members.

use core::net::{IpAddr, Ipv4Addr};

/// The destination queue pair of multicast datagrams.
pub const MULTICAST_QPN: u32 = 0xFF_FFFF;

/// The IP address of the multicast group with this GID. Connection managers write an IPv4 group's
/// GID as `ff0e::ffff:a.b.c.d`. `None` if the GID is not that of a group.
pub fn group_address(gid: IpAddr) -> Option<IpAddr> {
    let address = match gid {
        IpAddr::V6(v6) => match v6.octets() {
            [0xFF, _, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, a, b, c, d] => {
                IpAddr::V4(Ipv4Addr::new(a, b, c, d))
            }
            _ => gid.to_canonical(),
        },
        IpAddr::V4(_) => gid,
    };
    address.is_multicast().then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_one_address_however_it_is_written() {
        let v4: IpAddr = "239.1.2.3".parse().unwrap();
        for gid in ["239.1.2.3", "ff0e::ffff:239.1.2.3", "::ffff:239.1.2.3"] {
            assert_eq!(group_address(gid.parse().unwrap()), Some(v4), "{gid}");
        }
        let v6 = "ff0e::1:2".parse().unwrap();
        assert_eq!(group_address(v6), Some(v6));
        for gid in ["10.0.0.1", "fe80::1", "ff0e::ffff:10.0.0.1"] {
            assert_eq!(group_address(gid.parse().unwrap()), None, "{gid}");
        }
    }
}
