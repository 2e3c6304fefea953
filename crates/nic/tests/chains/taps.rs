//! Kernels beside chains: calls by the host that are refused, and a kernel bound to WRITEs. The
//! bytes that it replaces go into one buffer, which the card keeps.

use remora_nic::kernel::{
    Bound, Buffer, Busy, Call, Header, KernelIo, Kernels, Notify, Passing, Taken, Verdict,
};
use remora_nic::nic::CallError;
use remora_nic::qp::State;
use remora_nic::queue::Status;
use remora_nic::{Access, MrInit, PageTable, Time};

use crate::rig::{DATA, PLAIN, Qp, Rig, SIZE};

const LEN: u32 = 1000;
const FROM: u64 = DATA;
const TO: u64 = DATA + 0x1_0000;

/// Replaces each payload by its complement, and returns the verdicts that the test sets.
#[derive(Debug)]
struct Inverter {
    /// The verdicts to return, the next one last.
    verdicts: Vec<Verdict>,
    /// The capacity of the buffer at each payload.
    room: Vec<usize>,
}

impl Kernels for Inverter {
    fn call(&mut self, _: &mut KernelIo<'_>, _: &Call, _: &[u8], _: &[u8], _: u32) -> Taken {
        Taken::NoKernel
    }

    fn data(&mut self, _: &mut KernelIo<'_>, _: u32, _: &[u8], _: bool) -> Result<(), Busy> {
        Ok(())
    }

    fn turn(&mut self, _: &mut KernelIo<'_>) {}

    fn due(&self) -> Time {
        Time::NEVER
    }

    fn sent(&mut self, _: u64, _: Status, _: Option<Buffer>) {}

    fn closed(&mut self, _: u32) {}

    fn receiving(
        &mut self,
        _: &mut KernelIo<'_>,
        _: u32,
        _: &Passing,
        bytes: &[u8],
        replaced: &mut Vec<u8>,
    ) -> Verdict {
        self.room.push(replaced.capacity());
        replaced.extend(bytes.iter().map(|byte| !byte));
        self.verdicts.pop().unwrap_or(Verdict::Replace)
    }
}

/// A card with a kernel that returns these verdicts, and a queue pair whose WRITEs to itself pass
/// it.
fn tapped(verdicts: &[Verdict]) -> (Rig, Qp) {
    let mut rig = Rig::new();
    let verdicts = verdicts.iter().rev().copied().collect();
    rig.nic.set_kernels(Box::new(Inverter { verdicts, room: Vec::new() }));
    let qp = looped(&mut rig);
    rig.put(FROM, &[0x0F; LEN as usize]);
    (rig, qp)
}

fn looped(rig: &mut Rig) -> Qp {
    let qp = rig.looped(PLAIN, 8);
    rig.nic.bind_kernel(Bound::Receive(qp.qpn), 1).unwrap();
    qp
}

/// Checks that the buffer was allocated at the first payload, and kept for each further one.
fn was_kept(rig: &Rig, payloads: usize) {
    let kernels: &Inverter = rig.nic.kernels().unwrap();
    assert_eq!(kernels.room.len(), payloads);
    assert_eq!(kernels.room[0], 0);
    assert!(kernels.room[1..].iter().all(|room| *room >= LEN as usize), "{:?}", kernels.room);
}

#[test]
fn what_is_replaced_is_written() {
    let (mut rig, qp) = tapped(&[Verdict::Replace, Verdict::Replace]);
    rig.write(qp, FROM, TO, LEN);
    rig.write(qp, FROM, TO + 0x1000, LEN);
    rig.run();
    assert_eq!(rig.bytes(TO, LEN as usize), [0xF0; LEN as usize]);
    was_kept(&rig, 2);
}

#[test]
fn a_busy_kernel_does_not_cost_the_buffer() {
    let (mut rig, qp) = tapped(&[Verdict::Busy, Verdict::Replace]);
    rig.write(qp, FROM, TO, LEN);
    rig.run();
    assert_eq!(rig.bytes(TO, 1), [0], "nothing is written yet");
    rig.doorbell(qp, 1);
    rig.run();
    assert_eq!(rig.bytes(TO, LEN as usize), [0xF0; LEN as usize]);
    was_kept(&rig, 2);
}

#[test]
fn memory_that_cannot_be_reached_does_not_cost_the_buffer() {
    let (mut rig, qp) = tapped(&[Verdict::Replace, Verdict::Replace]);
    let pages = PageTable::contiguous(21, SIZE, SIZE);
    let beyond = MrInit { iova: 0, len: SIZE, access: Access::all(), pages };
    let beyond = rig.nic.reg_mr(rig.pd, beyond).unwrap();
    rig.post_keys(qp, (0, beyond), (FROM, LEN));
    rig.run();
    assert_eq!(rig.errors(qp), [(0, Status::RemoteOperation)]);
    let other = looped(&mut rig);
    rig.write(other, FROM, TO, LEN);
    rig.run();
    assert_eq!(rig.bytes(TO, LEN as usize), [0xF0; LEN as usize]);
    was_kept(&rig, 2);
}

/// What cannot be sent is refused at the call, and not dropped behind it.
#[test]
fn the_host_calls_by_no_queue_pair_that_sends_no_results() {
    let mut rig = Rig::new();
    let (fresh, looped) = (rig.fresh(PLAIN, 8), rig.looped(PLAIN, 8));
    let to = rig.remote(TO);
    let header = Header {
        notify: Notify::Immediate,
        local: false,
        params_len: 0,
        to,
        max_len: 8,
        cookie: 1,
    };
    for (qp, refused) in [(fresh, CallError::State(State::Reset)), (looped, CallError::Service)] {
        let called = rig.nic.call_kernel(rig.now, &mut rig.ram, qp.qpn, 1, &header.to_bytes());
        assert_eq!(called, Err(refused));
    }
}
