//! A node's card enforces its permissions, whatever its clients try.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use remora::Device;
use remora::nic::Access;
use remora::nic::queue::{Data, RemoteAddress, SendFlags, SendOp, SendRequest, Status};
use remora_command::node::address::RegionAddress;
use remora_command::node::client::RemoteRegion;
use remora_command::node::server::Node;
use remora_command::node::start::NodeOptions;

const PATIENCE: Duration = Duration::from_secs(20);

fn attempt(region: &RemoteRegion, write: bool, remote: RemoteAddress) -> Status {
    let local = region.pd().alloc(4096, Access::LOCAL_WRITE).unwrap();
    let sges = [local.sge(0, 8)];
    let op = match write {
        true => SendOp::Write { to: remote, imm: None },
        false => SendOp::Read { from: remote },
    };
    let data = Data::Sges(&sges);
    let request = SendRequest { wr_id: 1, op, data, flags: SendFlags::SIGNALED };
    region.queue_pair().post_send(&request).unwrap();
    region.cq().spin(PATIENCE).unwrap().status
}

#[test]
fn keys_give_access_to_their_own_region_only() {
    let device = Device::open().unwrap();
    let regions = ["ro=4096", "rw=4096,rw"].map(|spec| spec.parse().unwrap()).to_vec();
    let node = Node::start(&device, &NodeOptions { regions, ..NodeOptions::default() }).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| node.serve(&stop));
        let ours = Device::open().unwrap();
        let open = |name: &str| {
            let address = RegionAddress { node: node.address(), name: name.into() };
            RemoteRegion::open(&ours, &address, None, PATIENCE).unwrap()
        };
        // Each refusal ends its connection, so each attempt opens another.
        let (ro, rw) = (open("ro"), open("rw"));
        assert_eq!(attempt(&rw, true, rw.remote(4088)), Status::Success);
        assert_eq!(attempt(&rw, false, rw.remote(0)), Status::Success);
        assert_eq!(attempt(&ro, false, ro.remote(0)), Status::Success);
        assert_eq!(attempt(&open("ro"), true, ro.remote(0)), Status::RemoteAccess, "read-only");
        assert_eq!(attempt(&open("rw"), true, rw.remote(4089)), Status::RemoteAccess, "bounds");
        assert_eq!(attempt(&ro, false, rw.remote(0)), Status::RemoteAccess, "another region's key");
        let stats = open("@stats");
        assert_eq!(attempt(&stats, true, stats.remote(0)), Status::RemoteAccess, "the node's own");
        stop.store(true, Ordering::Relaxed);
    });
    let card = device.counters().card;
    let (permission, bounds) = (card.refused_permission, card.refused_bounds);
    assert_eq!((permission, bounds, card.refused_domain), (2, 1, 1));
}
