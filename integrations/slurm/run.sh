#!/usr/bin/env bash
# A command of vargen that shares its work, generate or evaluate, on several machines of a Slurm cluster:
#   sbatch integrations/slurm/run.sh generate --prompts_file prompts.txt --output pictures
# The output folder lies on a file system that all machines share. A requeued job goes on where it was stopped.
#SBATCH --job-name=vargen
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --requeue
#SBATCH --signal=TERM@60
set -euo pipefail
mapfile -t machines < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_ADDR=${machines[0]}
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)) # jobs that share a machine have ports of their own
export MASTER_ADDR MASTER_PORT
# A task is one process with one GPU; it learns its place from the variables that torchrun would set.
# shellcheck disable=SC2016
srun bash -c '
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS
    export LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$((SLURM_NTASKS / SLURM_NNODES))
    exec python -m vargen "$@"' vargen "$@"
