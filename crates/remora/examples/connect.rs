//! A client finds a server by address and port, sends a message and gets an answer.
//!
//! `cargo run --example connect`

use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use remora::nic::Access;
use remora::nic::queue::{Completion, Data, RecvRequest, SendFlags, SendOp, SendRequest, WorkKind};
use remora::{CompletionQueue, ConnectionParams, Device, Listener, QueuePair, QueuePairOptions};

const PORT: u16 = 7471;
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends a few bytes; they travel in the work request itself.
fn say(queue_pair: &QueuePair, text: &str) -> Result<(), Box<dyn Error>> {
    let op = SendOp::Send { imm: None, to: None };
    let data = Data::Inline(text.as_bytes());
    queue_pair.post_send(&SendRequest { wr_id: 1, op, data, flags: SendFlags::empty() })?;
    Ok(())
}

/// Waits for the next message.
fn hear(queue: &CompletionQueue) -> Result<Completion, Box<dyn Error>> {
    loop {
        let completion = queue.spin(PATIENCE)?;
        if completion.kind == WorkKind::Recv {
            return Ok(completion);
        }
    }
}

fn serve(device: &Device, listener: &Listener) -> Result<(), Box<dyn Error + Send + Sync>> {
    let domain = device.alloc_pd()?;
    let queue = device.create_cq(16)?;
    let queue_pair = domain.create_qp(&QueuePairOptions::rc(&queue))?;
    let room = domain.alloc(4096, Access::LOCAL_WRITE)?;

    let request = listener.accept().wait(PATIENCE).ok_or("nobody came")?;
    println!("server: {} asks", request.peer().ip());
    // The receive is posted before the connection is accepted, so that no message comes too early;
    // a queue pair takes receives from INIT on.
    queue_pair.to_init(Access::empty())?;
    queue_pair.post_recv(&RecvRequest { wr_id: 0, sges: &[room.sge(0, 4096)] })?;
    let params = ConnectionParams::new(device.info().mtu);
    let connection = request.accept(queue_pair, b"welcome", &params).wait(PATIENCE)?;
    let message = hear(&queue).map_err(|e| e.to_string())?;
    println!("server: got {} bytes", message.len);
    say(connection.queue_pair(), "and good bye").map_err(|e| e.to_string())?;
    connection.wait_for_end(PATIENCE);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let server = Device::open()?;
    let address = SocketAddr::new(server.info().address, PORT);
    let listener = server.listen(PORT)?;
    let serving = thread::spawn(move || serve(&server, &listener));

    let device = Device::open()?;
    let domain = device.alloc_pd()?;
    let queue = device.create_cq(16)?;
    let queue_pair = domain.create_qp(&QueuePairOptions::rc(&queue))?;
    let room = domain.alloc(4096, Access::LOCAL_WRITE)?;
    queue_pair.to_init(Access::empty())?;
    queue_pair.post_recv(&RecvRequest { wr_id: 0, sges: &[room.sge(0, 4096)] })?;
    let params = ConnectionParams::new(device.info().mtu);
    let connection = device.connect(queue_pair, address, b"hello", &params).wait(PATIENCE)?;
    say(connection.queue_pair(), "hello from the client")?;
    let answer = hear(&queue)?;
    let mut bytes = vec![0; answer.len as usize];
    room.read_at(0, &mut bytes)?;
    println!("client: the server says \"{}\"", String::from_utf8_lossy(&bytes));
    drop(connection);
    serving.join().expect("the server does not panic").map_err(|e| e.to_string())?;
    Ok(())
}
