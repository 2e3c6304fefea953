//! What a program that is attached lends, and when it has it back.

use remora_nic::queue::{Data, SendFlags, SendOp, SendRequest};

use super::*;
use crate::{ConnectionParams, QueuePairOptions};

fn attached(daemon: &Daemon) -> Device {
    DeviceOptions::new().attach(&daemon.path).open().unwrap()
}

/// Pieces of memory that are lent as mapped files.
fn files(daemon: &Daemon) -> u32 {
    let lent = daemon.observer().status().remove(0).sessions.remove(0).lent;
    lent.iter().filter(|(loan, _)| *loan == Loan::Sealed).map(|(_, count)| count).sum()
}

#[test]
fn a_registered_memory_file_stays_the_one_that_others_have_mapped() {
    let daemon = Daemon::start();
    let device = attached(&daemon);
    let (file, of_others) = sealed(16_384);
    let mapped = Arc::new(Buffer::map(file.as_fd(), 4096, 8192).unwrap());
    drop(file);
    let part = Buffer::part(&mapped, 64, 1000).unwrap();
    let domain = device.alloc_pd().unwrap();
    let region = domain.register(part, Access::all()).unwrap();
    assert_eq!(files(&daemon), 1);
    region.write_at(0, b"by the program").unwrap();
    let mut bytes = [0; 14];
    of_others.read_at(4096 + 64, &mut bytes).unwrap();
    assert_eq!(&bytes, b"by the program");

    let local = domain.alloc(4096, Access::all()).unwrap();
    let cq = device.create_cq(16).unwrap();
    let [one, two] = [(); 2].map(|()| domain.create_qp(&QueuePairOptions::rc(&cq)).unwrap());
    let params = ConnectionParams::new(device.info().mtu);
    one.connect(two.local(), &params).unwrap();
    two.connect(one.local(), &params).unwrap();
    local.write_at(0, b"by the card").unwrap();
    let sges = [local.sge(0, 11)];
    let op = SendOp::Write { to: region.remote(500), imm: None };
    let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
    one.post_send(&SendRequest { wr_id: 1, op, data, flags }).unwrap();
    assert_eq!(cq.spin(Duration::from_secs(60)).unwrap().status, Status::Success);
    let mut bytes = [0; 11];
    of_others.read_at(4096 + 64 + 500, &mut bytes).unwrap();
    assert_eq!(&bytes, b"by the card");
    // Another part of the file needs no other loan.
    let second = Buffer::part(&mapped, 2048, 100).unwrap();
    let second = domain.register(second, Access::all()).unwrap();
    assert_eq!(files(&daemon), 2, "the file, and the local region");
    drop((region, local));
    assert_eq!(files(&daemon), 1);
    drop(second);
    assert_eq!(files(&daemon), 0);
}

#[test]
fn a_registered_part_of_a_buffer_leaves_the_bytes_beside_it() {
    let daemon = Daemon::start();
    let device = attached(&daemon);
    let whole = Arc::new(Buffer::new(8192).unwrap());
    whole.write_at(996, b"partbeside").unwrap();
    let domain = device.alloc_pd().unwrap();
    let part = Buffer::part(&whole, 0, 1000).unwrap();
    let region = domain.register(part, Access::all()).unwrap();
    let mut bytes = [0; 10];
    whole.read_at(996, &mut bytes).unwrap();
    assert_eq!(&bytes, b"partbeside");
    region.write_at(996, b"PART").unwrap();
    whole.read_at(996, &mut bytes).unwrap();
    assert_eq!(&bytes, b"PARTbeside", "the region is still these bytes");
}

#[test]
fn converted_memory_is_given_back_when_it_is_unmapped() {
    let daemon = Daemon::start();
    let device = attached(&daemon);
    let domain = device.alloc_pd().unwrap();
    let register = |buffer: &Buffer| {
        // SAFETY: the region is dropped, or not used any more, before the buffer is.
        unsafe { domain.register_raw(buffer.addr(), buffer.len() as u64, Access::all()) }.unwrap()
    };
    let buffers = [(); 3].map(|()| Buffer::new(8192).unwrap());
    let [one, two, three] = buffers.each_ref().map(register);
    if files(&daemon) == 0 {
        // Without userfaultfd nothing is converted beside the threads of this process.
        return;
    }
    assert_eq!(files(&daemon), 3);
    drop(one);
    assert_eq!(files(&daemon), 3, "it may be registered again");
    let [first, second, third] = buffers;
    drop((first, two));
    assert_eq!(files(&daemon), 2);
    // In the other order, too.
    drop((second, third));
    drop(three);
    assert_eq!(files(&daemon), 0);
}
