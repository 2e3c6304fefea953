//! A kernel of several tests.

use remora_nic::kernel::CallStatus;
use remora_offload::kernel::Context;

/// Returns its parameters and its payload.
pub(crate) async fn echo(context: Context) -> Result<(), CallStatus> {
    let params = context.params(|params| Ok(params.to_vec())).await?;
    context.output(|out| out.extend_from_slice(&params)).await?;
    while let Some(result) = context
        .payload(|piece, port| {
            port.output()?.extend_from_slice(piece);
            Ok(())
        })
        .await?
    {
        result?;
    }
    Ok(())
}
