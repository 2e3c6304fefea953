//! Shuffle into memory that it may not write, or not any more: the card checks each write.

use remora_nic::kernel::{Bound, CallStatus};
use remora_nic::queue::Status;
use remora_nic::{Access, Memory, MrChange};
use remora_offload::chain::link::RegionAt;
use remora_offload::kernel::builtin::shuffle::{Ask, PARTITION_LEN, Params, Partition, Shuffles};
use remora_offload::kernel::{Deployment, ExecutorLimits, Grant};
use remora_sim::chain::register;
use remora_sim::kernel::kernel_pair;
use remora_sim::pair::{A, B, Pair, PairOptions};

const OP: u64 = 0x77;
const SESSION: u32 = 3;
/// Values in each of the two partitions.
const EACH: u64 = 5000;
const PARTITION: usize = EACH as usize * 8;
/// The address in plain WRITEs.
const TARGET: u64 = 200_000;

/// A pair in which B shuffles values of RPC WRITEs and of plain WRITEs into regions made for that.
struct World {
    t: Pair,
    regions: Vec<RegionAt>,
    values: Vec<u8>,
}

impl World {
    /// One region for each length in bytes.
    fn new(lens: &[usize]) -> World {
        let mut t = kernel_pair(PairOptions::default(), ExecutorLimits::default(), None);
        let pd = t.ends[B].pd;
        let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let host = &mut t.world.hosts[B];
        let regions: Vec<_> = lens.iter().map(|len| register(host, pd, *len, open)).collect();
        let grants: Vec<_> = regions.iter().map(|r| Grant { key: r.key, write: true }).collect();
        let kernel = Shuffles::new();
        let tap = t.kernels(B, |kernels, _| {
            let deployment = Deployment::new("shuffle", &*grants);
            kernels.deploy(OP, deployment, kernel.program()).unwrap();
            kernels.add_tap(grants, kernel.tap(SESSION))
        });
        let qpn = t.ends[B].qpn;
        t.world.hosts[B].nic.bind_kernel(Bound::Receive(qpn), tap).unwrap();
        // The values alternate between the partitions, so that both fill at the same speed.
        let values: Vec<u8> = (1..=2 * EACH).flat_map(u64::to_le_bytes).collect();
        World { t, regions, values }
    }

    /// Sends the histogram with the addresses of the partitions.
    fn begin(&mut self, places: [u64; 2]) {
        let entry = |address| Partition::histogram(address, &[EACH]);
        let histogram = places.map(entry).concat();
        assert_eq!(histogram.len(), 2 * PARTITION_LEN);
        assert_eq!(self.call(Ask::Histogram, &histogram), Some(CallStatus::OK));
    }

    fn call(&mut self, ask: Ask, payload: &[u8]) -> Option<CallStatus> {
        let params = Params { ask, bits: 1, session: SESSION }.to_bytes();
        self.t.call_and_wait(OP, &params, payload, 16).0
    }

    /// Posts the values as plain WRITEs.
    fn write(&mut self) {
        self.t.set(A, 0, &self.values);
        self.t.write(A, 0, TARGET, self.values.len() as u32);
    }

    /// `len` bytes of B's memory.
    fn bytes(&mut self, addr: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.t.world.hosts[B].memory.read(addr, &mut out).unwrap();
        out
    }

    /// The values of a partition, in the order of sending.
    fn expected(&self, partition: u64) -> Vec<u8> {
        let (values, _) = self.values.as_chunks::<8>();
        let of = |value: &&[u8; 8]| u64::from_le_bytes(**value) % 2 == partition;
        values.iter().filter(of).flatten().copied().collect()
    }
}

#[test]
fn partitions_may_lie_in_different_regions_at_any_address() {
    let mut w = World::new(&[PARTITION + 64, PARTITION + 64]);
    // One partition begins in the middle of a word, the other in the middle of a block.
    let places = [w.regions[0].addr + 3, w.regions[1].addr + 40];
    let values = w.values.clone();
    w.begin(places);
    assert_eq!(w.call(Ask::Values, &values), Some(CallStatus::OK));
    for partition in [0, 1] {
        let place = places[partition as usize];
        assert!(w.bytes(place, PARTITION) == w.expected(partition), "by RPC WRITE");
        w.t.world.hosts[B].memory.write(place, &[0; PARTITION]).unwrap();
    }
    w.begin(places);
    w.write();
    w.t.run();
    for partition in [0, 1] {
        let place = places[partition as usize];
        assert!(
            w.bytes(place, PARTITION) == w.expected(partition),
            "a partition after plain WRITEs"
        );
    }
}

/// A change of a region while values stream into it.
type Change = fn(&mut Pair, RegionAt);

#[test]
fn a_shuffle_stops_writing_a_region_that_it_may_no_longer_write() {
    let changes: [(&str, Change); 3] = [
        ("deregistered", |t, region| t.world.hosts[B].nic.dereg_mr(region.key).unwrap()),
        ("its rights are gone", |t, region| {
            let change = MrChange { access: Some(Access::empty()), ..MrChange::default() };
            t.world.hosts[B].nic.rereg_mr(region.key, change).unwrap();
        }),
        ("in another domain", |t, region| {
            let nic = &mut t.world.hosts[B].nic;
            let pd = Some(nic.alloc_pd().unwrap());
            nic.rereg_mr(region.key, MrChange { pd, ..MrChange::default() }).unwrap();
        }),
    ];
    for (name, change) in changes {
        let mut w = World::new(&[2 * PARTITION]);
        let region = w.regions[0];
        w.begin([region.addr, region.addr + PARTITION as u64]);
        let len = w.values.len();
        w.write();
        while w.t.counted("kernel_tapped_bytes") < len as u64 / 2 {
            w.t.world.step();
        }
        let before = w.bytes(region.addr, 2 * PARTITION);
        assert!(before.iter().any(|byte| *byte != 0), "{name}: no values have arrived");
        change(&mut w.t, region);
        w.t.run();
        // Expect: no further byte; the rest is written to the WRITE's address, and the connection
        // stays up.
        assert!(w.bytes(region.addr, 2 * PARTITION) == before, "{name}");
        assert_eq!(w.t.bytes(B, TARGET + len as u64 - 8, 8), w.values[len - 8..], "{name}");
        assert_eq!(w.t.sent(A).last().map(|done| done.status), Some(Status::Success), "{name}");
        // An RPC WRITE returns an error to the requester.
        let values = w.values.clone();
        assert_eq!(w.call(Ask::Values, &values), Some(CallStatus::ACCESS), "{name}");
        assert!(w.bytes(region.addr, 2 * PARTITION) == before, "{name}");
    }
}

#[test]
fn a_partition_cannot_exceed_its_region() {
    // (The other region only ensures that there is memory behind the first one.)
    let mut w = World::new(&[2 * PARTITION, 64]);
    let region = w.regions[0];
    // The second partition's last block would lie behind the region's end.
    let second = region.addr + PARTITION as u64 + 64;
    w.begin([region.addr, second]);
    let end = region.addr + 2 * PARTITION as u64;
    let behind = w.bytes(end, 64);
    let values = w.values.clone();
    assert_eq!(w.call(Ask::Values, &values), Some(CallStatus::ACCESS));
    assert_eq!(w.bytes(end, 64), behind);
    let there = PARTITION - 128;
    assert!(w.bytes(second, there) == w.expected(1)[..there]);
}
