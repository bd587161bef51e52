#!/usr/bin/env bash
# Pictures on several machines of a Slurm cluster: sbatch integrations/slurm/generate.sh prompts.txt pictures
# The output folder lies on a file system that all machines share. A requeued job goes on where it was stopped.
#SBATCH --job-name=vargen
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --requeue
#SBATCH --signal=TERM@60
set -euo pipefail
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes "$SLURM_NNODES" --nproc_per_node "${SLURM_GPUS_ON_NODE:-1}" \
    --rdzv_backend c10d --rdzv_id "$SLURM_JOB_ID" --rdzv_endpoint "$head:29500" \
    -m vargen generate --prompts_file "$1" --output "$2" "${@:3}"
