#include <mujoco/mujoco.h>

/* Move each of `count` robots by one step under its row of `controls`, or, without controls, only derive what
   follows from its state. A row of `states` is qpos, qvel, com, com velocity and, if it feels them, contact
   wrenches; a row of `warm` is where the constraint solver starts. All robots share the workspace d. */
void corral_step(const mjModel* m, mjData* d, const int* robots, int count, const mjtNum* controls,
                 int feels, mjtNum* states, int width, mjtNum* warm) {
  mjcb_time = 0;  /* the bindings' clock for MuJoCo's own profile, which nobody reads here: 6% of a step */
  for (int k = 0; k < count; k++) {
    mjtSize i = robots[k];
    mjtNum *qpos = states + i * width, *qvel = qpos + m->nq, *com = qvel + m->nv, *wrench = com + 6;
    mju_copy(d->qpos, qpos, m->nq);
    mju_copy(d->qvel, qvel, m->nv);
    mju_copy(d->qacc_warmstart, warm + i * m->nv, m->nv);
    if (controls) {
      mju_copy(d->ctrl, controls + i * m->nu, m->nu);
      mj_forwardSkip(m, d, mjSTAGE_NONE, 1);
      mj_RungeKutta(m, d, 4);
      mju_copy(qpos, d->qpos, m->nq);
      mju_copy(qvel, d->qvel, m->nv);
    } else {
      mju_zero(d->ctrl, m->nu);
    }
    if (feels) {
      mj_step1(m, d);
      if (d->ncon) {
        mj_forwardSkip(m, d, mjSTAGE_VEL, 0);
        mju_copy(wrench, d->cfrc_ext, 6 * m->nbody);
      } else {
        mju_zero(wrench, 6 * m->nbody);
      }
    } else {
      mj_kinematics(m, d);
      mj_comPos(m, d);
      mj_comVel(m, d);
    }
    mj_subtreeVel(m, d);
    mju_copy(com, d->subtree_com + 3, 3);
    mju_copy(com + 3, d->subtree_linvel + 3, 3);
    mju_copy(warm + i * m->nv, d->qacc_warmstart, m->nv);
  }
}
