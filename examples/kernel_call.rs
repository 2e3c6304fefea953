//! Code on the server's card (a kernel, StRoM): it adds up a column of a table that lies in the
//! server's memory, and the client gets the sum in one round trip instead of the whole table.
//!
//! `cargo run -p remora --example kernel_call`

use std::error::Error;
use std::time::Duration;

use remora::kernel::CallStatus;
use remora::prelude::*;

const TIMEOUT: Duration = Duration::from_secs(10);
const SUM: u64 = 1;
const ROW_LEN: usize = 32;
const ROWS: usize = 1000;

/// The kernel. Its parameters are the table's address and the column's offset. It reaches only the
/// memory that it was granted.
async fn sum(call: Context) -> Result<(), CallStatus> {
    let (table, column) = call
        .params(|params| {
            let (table, column) = params.split_first_chunk().ok_or(CallStatus::BAD_PARAMS)?;
            let column = column.try_into().map_err(|_| CallStatus::BAD_PARAMS)?;
            Ok((u64::from_le_bytes(*table), u64::from_le_bytes(column)))
        })
        .await?;
    let (mut sum, mut word) = (0u64, [0; 8]);
    for row in 0..ROWS as u64 {
        let at = table.wrapping_add(row * ROW_LEN as u64).wrapping_add(column);
        call.read(at, &mut word).await?;
        sum = sum.wrapping_add(u64::from_le_bytes(word));
    }
    call.output(|out| out.extend_from_slice(&sum.to_le_bytes())).await
}

fn main() -> Result<(), Box<dyn Error>> {
    // The server deploys the kernel, and has nothing more to do.
    let server = Device::open()?;
    let theirs = server.alloc_pd()?;
    let table = theirs.alloc(ROWS * ROW_LEN, Access::LOCAL_WRITE)?;
    for row in 0..ROWS {
        table.slice(row * ROW_LEN + 8..).write(&(row as u64).to_le_bytes())?;
    }
    server.deploy(SUM, Deployment::new("sum", [table.grant_read()]), sum)?;
    let passive = theirs.create_qp(&QueuePairOptions::new())?;

    // The client connects. Both sides allow kernels on this connection.
    let device = Device::open()?;
    let mine = device.alloc_pd()?;
    let qp = mine.create_qp(&QueuePairOptions::new().inline(128))?;
    let params = ConnectionParams::new(device.info().mtu).kernels(true);
    passive.connect(qp.local(), &params)?;
    qp.connect(passive.local(), &params)?;
    let client = AsyncKernelClient::new(&mine, &qp, 4, 8)?;
    let ask = [table.addr(), 8].map(u64::to_le_bytes).concat();
    let answer = client.call(SUM, &ask).wait(TIMEOUT)?;
    let sum = u64::from_le_bytes(answer.as_slice().try_into()?);
    println!("the sum of {ROWS} rows, in one round trip and {} bytes: {sum}", answer.len());
    assert_eq!(sum, (0..ROWS as u64).sum());
    Ok(())
}
